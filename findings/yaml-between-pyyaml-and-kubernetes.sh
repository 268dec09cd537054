#!/bin/sh
# Expected: a string that PyYAML writes is a string to kubectl, and one that Kubernetes' library writes is a string to PyYAML.
# Seen: PyYAML writes without quotes what is a number or a truth value to sigs.k8s.io/yaml: a short commit such as 12345e6, a
#   month such as 08, 1e-4, 0o17, y. The other way, "=" and "<<" are written bare, and PyYAML raises ConstructorError.
# With: PyYAML 6.0.3, sigs.k8s.io/yaml v1.6.0 (Go 1.26), Python 3.11, on 2026-11-29.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check PyYAML==6.0.3
mkdir "$folder/go"
cat >"$folder/go/main.go" <<'PROGRAM'
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"sigs.k8s.io/yaml"
)

// Reads a JSON list of YAML texts, and prints the JSON of each; with "write", a list of strings, and prints the YAML of each.
func main() {
	var given []string
	text, _ := io.ReadAll(os.Stdin)
	if err := json.Unmarshal(text, &given); err != nil {
		panic(err)
	}
	var answers []string
	for _, each := range given {
		answer, err := yaml.YAMLToJSON([]byte(each))
		if len(os.Args) > 1 {
			answer, err = yaml.Marshal(each)
		}
		if err != nil {
			panic(err)
		}
		answers = append(answers, string(answer))
	}
	out, _ := json.Marshal(answers)
	fmt.Println(string(out))
}
PROGRAM
(
    cd "$folder/go"
    go mod init reads >/dev/null 2>&1
    go get sigs.k8s.io/yaml@v1.6.0 >/dev/null 2>&1
    go build -o reads .
)
"$folder/venv/bin/python" - "$folder/go/reads" <<'PROGRAM'
import json
import subprocess
import sys

import yaml


def kubernetes(texts, *mode):
    command = [sys.argv[1], *mode]
    found = subprocess.run(command, input=json.dumps(texts), text=True, capture_output=True, check=True)
    return json.loads(found.stdout)


STRINGS = ["12345e6", "08", "1e-4", "0o17", "y", "yes", "017", "1:30", "2026-01-01"]
written = [yaml.safe_dump({"v": text}) for text in STRINGS]
read = [json.loads(answer)["v"] for answer in kubernetes(written)]
changed = [text for text, value in zip(STRINGS, read, strict=True) if text != value]
for text, line, value in zip(STRINGS, written, read, strict=True):
    print(f"{text!r}: PyYAML writes {line.strip()}, Kubernetes reads {value!r}")
refused = []
for text, line in zip(["=", "<<"], kubernetes(["=", "<<"], "write"), strict=True):
    try:
        answer = repr(yaml.safe_load(line))
    except yaml.constructor.ConstructorError:
        answer = "ConstructorError"
        refused.append(text)
    print(f"{text!r}: Kubernetes writes {line.strip()}, PyYAML reads {answer}")
sys.exit(changed != ["12345e6", "08", "1e-4", "0o17", "y"] or refused != ["=", "<<"])
PROGRAM

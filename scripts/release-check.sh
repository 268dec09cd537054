#!/bin/sh
# What a release needs beside green tests: versions agree, the wheel works in an empty environment, the chart lints, the
# site builds, and both images build where a builder is. Prints what it did; the first failure ends it. What only a maintainer can
# write, the date and the repository's address, is asked for at the end.
set -eu
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD"

echo "==> Versions"
.venv/bin/python -m pytest -q -n 0 tests/docs/test_versions.py
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)

echo "==> The wheel, in an empty environment"
uv=$(./scripts/find-uv.sh)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$uv" build --quiet --wheel --out-dir "$scratch" .
"$uv" venv --quiet --python .venv/bin/python "$scratch/venv"
"$uv" pip install --quiet --python "$scratch/venv/bin/python" "$scratch"/*.whl
(cd "$scratch" && PYTHONPATH='' venv/bin/isoloss quickstart >/dev/null)

echo "==> The chart"
.venv/bin/python -m devcluster build helm >/dev/null
helm=$(.venv/bin/python -c 'from devcluster.build import tool_path; print(tool_path("helm"))')
"$helm" lint helm/isoloss --set image.repository=x/operator --set trainer.image.repository=x/trainer

echo "==> The site"
.venv/bin/python scripts/site.py

# One by one: of several names some shells look up the first alone.
if command -v buildah >/dev/null || command -v docker >/dev/null || command -v podman >/dev/null; then
    echo "==> The images"
    .venv/bin/python -m images
else
    echo "==> The images were not built: this machine has neither buildah nor docker nor podman"
fi

echo "==> What a maintainer writes"
wanted() { grep -q "$2" "$1" || { echo "$1: $3" >&2 && left=1; }; }
left=''
wanted CHANGELOG.md "^## $version (" "no dated entry: rename '## Unreleased' to '## $version (YYYY-MM-DD)'"
wanted CITATION.cff '^repository-code:' "no repository-code: the repository's address"
wanted pyproject.toml '^\[project.urls\]' "no [project.urls]: the same address"
wanted helm/isoloss/Chart.yaml '^home:' "no home: the same address"
wanted zensical.toml '^repo_url' "no repo_url: the same address"
wanted .github/CODEOWNERS '^\*' "no owner: who reviews what"
[ -z "$left" ] || exit 1
echo "==> $version is ready to be tagged v$version"

#!/bin/sh
# Expected: kube-apiserver takes one private key for both --service-account-signing-key-file and --service-account-key-file, in any form
#   that it can sign with: `openssl genpkey` writes PKCS#8.
# Seen: of an RSA key it takes both forms for both flags. Of an ECDSA key in PKCS#8 it signs with the private half, and finds no public
#   key in the same file ("data does not contain any valid RSA or ECDSA public keys"); SEC1, as of `openssl ecparam`, it takes for both.
# With: k8s.io/client-go v0.37.2, with which kube-apiserver 1.37.2 reads both files, Go 1.26, on 2026-12-01.
# Fails if that is so no more.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/main.go" <<'PROGRAM'
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"

	"k8s.io/client-go/util/keyutil"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	ec := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	rs := must(rsa.GenerateKey(rand.Reader, 2048))
	files := []struct {
		name  string
		block pem.Block
	}{
		{"RSA, PKCS#1", pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(rs)}},
		{"RSA, PKCS#8", pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(rs))}},
		{"ECDSA, SEC1", pem.Block{Type: "EC PRIVATE KEY", Bytes: must(x509.MarshalECPrivateKey(ec))}},
		{"ECDSA, PKCS#8", pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(ec))}},
	}
	changed := false
	for _, file := range files {
		path := os.Args[1] + "/key.pem"
		if err := os.WriteFile(path, pem.EncodeToMemory(&file.block), 0o600); err != nil {
			panic(err)
		}
		_, signing := keyutil.PrivateKeyFromFile(path)
		_, verifying := keyutil.PublicKeysFromFile(path)
		fmt.Printf("%-14s to sign with: %v; to verify with: %v\n", file.name, told(signing), told(verifying))
		refused := verifying != nil
		changed = changed || signing != nil || refused != (file.name == "ECDSA, PKCS#8")
	}
	if changed {
		fmt.Println("That has changed.")
		os.Exit(1)
	}
}

func told(err error) string {
	if err == nil {
		return "read"
	}
	return err.Error()
}
PROGRAM
cd "$folder"
go mod init keys >/dev/null 2>&1
go get k8s.io/client-go@v0.37.2 >/dev/null 2>&1
go run . "$folder"

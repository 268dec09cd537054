#!/bin/sh
# Prints the folder of a prometheus and promtool: the machine's own, else what --fetch left in the user's cache.
# --fetch unpacks Debian's package there (nothing is installed, root is not needed). Fails with a sentence
# where there is neither.
set -eu
if command -v promtool >/dev/null && command -v prometheus >/dev/null; then
    dirname "$(command -v promtool)"
    exit
fi
cache="${XDG_CACHE_HOME:-$HOME/.cache}/isoloss/prometheus"
if [ ! -x "$cache/usr/bin/promtool" ]; then
    if [ "${1:-}" != --fetch ]; then
        echo "no prometheus and promtool on PATH: install them, or run make test-alerts, which fetches Debian's package" >&2
        exit 1
    fi
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
        echo "no prometheus and promtool on PATH, and no apt-get to fetch Debian's package with" >&2
        exit 1
    fi
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    if ! (cd "$scratch" && apt-get download -qq prometheus >&2 && dpkg-deb -x prometheus_*.deb files); then
        echo "no prometheus and promtool on PATH, and apt-get could not fetch Debian's package" >&2
        exit 1
    fi
    mkdir -p "$(dirname "$cache")"
    rm -rf "$cache"
    mv "$scratch/files" "$cache"
fi
echo "$cache/usr/bin"

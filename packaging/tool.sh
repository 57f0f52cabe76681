#!/usr/bin/env bash
# Installs one of the cargo commands that make the packages or check the dependencies, if it is missing.
set -euo pipefail
case $1 in
    cargo-deb) version=3.8.0 ;;
    cargo-deny) version=0.20.2 ;;
    cargo-generate-rpm) version=0.21.1 ;;
    *) echo "$0: name a tool: cargo-deb, cargo-deny or cargo-generate-rpm" >&2; exit 64 ;;
esac
command -v "$1" >/dev/null || nice cargo install --locked --version "$version" "$1"

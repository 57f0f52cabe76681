#!/usr/bin/env bash
# Builds kubelogin, with which people log in if their class has a credential of kind "oidc".
#
#   stdout: the folder that holds `kubectl-oidc_login`, the name by which kubectl finds it, as its only line
#   stderr: progress
#
# Built once (half a minute) and kept in ${BURSAR_TEST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/bursar}/kubelogin.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/kubelogin"
cache=${BURSAR_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/bursar}/kubelogin
folder=$cache/$({ cat go.mod go.sum; go env GOVERSION GOARCH; } | sha256sum | cut -c1-16)
if [ ! -x "$folder/kubectl-oidc_login" ]; then
    mkdir -p "$folder"
    echo "kubelogin: building it" >&2
    CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$folder/.new.$$" github.com/int128/kubelogin >&2
    mv "$folder/.new.$$" "$folder/kubectl-oidc_login"
fi
echo "$folder"

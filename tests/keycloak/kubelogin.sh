#!/usr/bin/env bash
# Builds kubelogin, with which people log in if their class has `kind = "oidc"`.
#
#   stdout: the folder of `kubectl-oidc_login`, as the only line; kubectl finds kubelogin by this name
#   stderr: progress
#
# Builds once (half a minute). The result is kept in ${BURSAR_TEST_CACHE:-${XDG_CACHE_HOME:-~/.cache}/bursar}/kubelogin.
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

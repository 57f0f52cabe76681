#!/usr/bin/env bash
# Generates the manual pages and the shell completions for the packages, from the program itself.
#
#   packaging/generate.sh PATH-OF-BURSAR
set -euo pipefail
bursar=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")"
rm -rf generated
mkdir -p generated/man
"$bursar" man --out generated/man
"$bursar" completions bash >generated/bursar.bash
"$bursar" completions zsh >generated/_bursar
"$bursar" completions fish >generated/bursar.fish

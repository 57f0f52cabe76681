#!/usr/bin/env bash
# Generates the manual pages and the shell completions for the packages, from the program itself, and the documentation
# with links that are right in /usr/share/doc/bursar.
#
#   packaging/generate.sh PATH-OF-BURSAR
set -euo pipefail
bursar=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")"
rm -rf generated
mkdir -p generated/man generated/doc
"$bursar" man --out generated/man
"$bursar" completions bash >generated/bursar.bash
"$bursar" completions zsh >generated/_bursar
"$bursar" completions fish >generated/bursar.fish

cp -r ../docs/. ../README.md ../CHANGELOG.md ../SECURITY.md generated/doc
# The packages have bursar.toml and the folder examples beside the pages. Other files of the repository are not in them,
# so links to those files become plain text.
find generated/doc -name '*.md' -exec sed -i -E \
    -e 's#\]\(docs/#](#g' \
    -e 's#\]\((\.\./)?config/#](#g' \
    -e 's#\]\(\.\./(CHANGELOG|SECURITY|README)\.md#](\1.md#g' \
    -e 's#\[([^][]*)\]\((\.\./)?(ARCHITECTURE\.md|CONTRIBUTING\.md|LICENSE)\)#\1#g' {} +

#!/usr/bin/env bash
# Compiles with one more kind that has no row yet, and prints the places that the compiler reports: at most five files.
set -euo pipefail
cd "$(dirname "$0")/.."

package=bursar
[ -e src/kinds/managed.rs ] || package=bursar-core
if said=$(cargo rustc --locked -p "$package" --lib --profile check --message-format short -- --cfg bursar_new_kind 2>&1); then
    echo "new-kind: the compiler reports no place for a new kind" >&2
    exit 1
fi
places=$(grep 'error\[E0004\]' <<<"$said" || true)
others=$(grep 'error\[' <<<"$said" | grep -v 'E0004' || true)
if [ -z "$places" ] || [ -n "$others" ]; then
    echo "$said" >&2
    exit 1
fi
echo "$places"
files=$(cut -d: -f1 <<<"$places" | sort -u | wc -l)
echo "new-kind: the compiler reports places in $files files"
[ "$files" -le 5 ]

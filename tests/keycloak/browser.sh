#!/usr/bin/env bash
# Acts as a person at a browser: opens the given page of Keycloak, logs in as $BROWSER_USER, whose password is the same
# as the name, and grants what is requested. kubelogin runs this script under the name `xdg-open`.
set -euo pipefail

site=${1%%/realms/*}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

visit() {
    curl --silent --show-error --fail --location --cacert "$SSL_CERT_FILE" \
        --cookie "$folder/jar" --cookie-jar "$folder/jar" "$@" >"$folder/page"
}
# Print the URL of the page's form, and its hidden field `code`.
action() { grep -om1 'action="[^"]*"' "$folder/page" | cut -d'"' -f2 | sed "s/&amp;/\&/g; s|^/|$site/|"; }
code() { grep -o 'name="code" value="[^"]*"' "$folder/page" | cut -d'"' -f4; }

visit "$1"
visit --data-urlencode "username=$BROWSER_USER" --data-urlencode "password=$BROWSER_USER" "$(action)"
visit --data-urlencode "code=$(code)" --data-urlencode "accept=Yes" "$(action)"

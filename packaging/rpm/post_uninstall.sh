# The ledger and its keys stay in /var/lib/bursar.
systemctl daemon-reload >/dev/null 2>&1 || :

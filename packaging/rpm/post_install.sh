systemd-tmpfiles --create bursar.conf || :
systemctl daemon-reload >/dev/null 2>&1 || :

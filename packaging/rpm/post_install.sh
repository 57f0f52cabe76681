systemd-tmpfiles --create bursar.conf || :
systemctl daemon-reload >/dev/null 2>&1 || :
# 1: the first installation; 2: an upgrade.
if [ "$1" -ge 2 ]; then
    echo "Bursar's services were not restarted: they still run the former version. Before you restart them, run"
    echo "\`bursar init\` in each cluster, in the order of /usr/share/doc/bursar/upgrade.md."
fi

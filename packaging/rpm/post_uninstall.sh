systemctl daemon-reload >/dev/null 2>&1 || :
if [ "$1" -ge 1 ]; then
    systemctl try-restart bursar-homed.service bursard.service bursar-webhook.service >/dev/null 2>&1 || :
fi
# The ledger and its keys stay in /var/lib/bursar.

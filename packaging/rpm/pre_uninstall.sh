# 0: the package is removed; 1: it is upgraded.
if [ "$1" = 0 ]; then
    systemctl disable --now bursar-approver.service bursar-webhook.service bursard.service bursar-homed.socket bursar-homed.service \
        >/dev/null 2>&1 || :
fi

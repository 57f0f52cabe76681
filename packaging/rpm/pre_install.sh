# The group of the configuration must exist before the file is installed. Same users and groups as
# sysusers.d/bursar.conf.
getent group bursar >/dev/null || groupadd --system bursar
getent group bursar-admin >/dev/null || groupadd --system bursar-admin
getent group bursar-webhook >/dev/null || groupadd --system bursar-webhook
getent passwd bursar-webhook >/dev/null || useradd --system --gid bursar-webhook --comment 'Bursar webhook' \
    --home-dir /etc/bursar-webhook --no-create-home --shell /usr/sbin/nologin bursar-webhook
getent group bursar-approver >/dev/null || groupadd --system bursar-approver
getent passwd bursar-approver >/dev/null || useradd --system --gid bursar-approver --comment 'Bursar approver' \
    --home-dir /etc/bursar-approver --no-create-home --shell /usr/sbin/nologin bursar-approver
getent passwd bursar >/dev/null || useradd --system --gid bursar --comment Bursar --home-dir /var/lib/bursar \
    --no-create-home --shell /usr/sbin/nologin bursar

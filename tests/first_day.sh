# Tasks 2 to 10 of docs/first-day.md, in the booted system of packages.sh, which sources this file after the
# installation. The other lines prepare what the page expects: the addresses of the servers in an example, the three
# files in root's home, kubectl, the homes, and the address of the host. They also cause the accidents that the page
# describes.

say "the first day, 2: connect"
sed -e 's|^urls = .*|urls = ["'"$(cat "$site/ldap-url")"'"]|' -e 's|https://k8s.tools.example.org:6443|'"$(cat "$site/k8s-url")"'|' \
    "$system/usr/share/doc/bursar/examples/toolforge.toml" >"$work/bursar.toml"
# Written in place: the file keeps the owner and the mode that the package gave it.
cat "$work/bursar.toml" >"$system/etc/bursar/bursar.toml"
install -m 0600 "$site/ldap-ca.pem" "$site/ldap-password" "$system/root/"
install -m 0755 "$site/kubectl" "$system/usr/local/bin/"
install -D -m 0600 "$site/admin.kubeconfig" "$system/root/.kube/config"
nsenter -t "$leader" -n -- ip address add 10.0.0.5/32 dev lo
# Nobody has a home in /home yet; `doctor` must not report that as a problem.
for tool in baz:52501 qux:52502 foo:52503 bar:52504 quux:52505 corge:52506; do
    within install -d -m 0700 -o "${tool#*:}" -g "${tool#*:}" "/data/project/${tool%:*}"
done
today 2
prints '6 tools'
prints 'homes beneath /home: exists.*, but is empty'
say "the first day: a CA that only root can read"
within chmod 0600 /etc/bursar/k8s-ca.pem
ends 78 bursar check
grep -q 'k8s-ca.pem: Permission denied.*let user bursar read the file' "$work/output" || { cat "$work/output" >&2; fail "bursar check as root does not report the unreadable CA"; }
within chmod 0644 /etc/bursar/k8s-ca.pem

say "the first day, 3: plan"
# Exit code 2, because there are changes.
day_ends["bursar plan"]=2
today 3
prints '^\+ .*foo'

say "the first day, 4: sync and protect"
today 4
is bursar-webhook "$(state bursar-webhook.service)" active
as_foo() { within kubectl --kubeconfig /data/project/foo/.kube/config auth can-i create pods; }
is "tool foo may create pods" "$(as_foo)" yes

say "the first day, 5: a larger quota"
today 5
prints 'T123'

say "the first day, 6: why"
today 6
prints 'kubeconfig'

say "the first day, 7: suspend and resume"
today 7
soon "tool foo has access after resume" as_foo

say "the first day, 8: revoke"
within cp /data/project/foo/.kube/config /root/stolen
today 8
prints 'refuses older credentials'
! within kubectl --kubeconfig /root/stolen auth can-i create pods >/dev/null 2>&1 || fail "the stolen kubeconfig still works"
is "tool foo may create pods with the new kubeconfig" "$(as_foo)" yes

say "the first day, 9: who had access"
today 9
prints 'laptop stolen'

say "the first day, 10: the ledger is lost"
ends 0 systemctl stop bursard
within find /var/lib/bursar -name 'ledger.db*' -delete
for command in plan status "sync --once"; do
    # shellcheck disable=SC2086 # the words of the command
    ends 78 bursar $command
    grep -q 'the ledger was lost.*bursar ledger rebuild' "$work/output" || fail "bursar $command does not say how the ledger is recovered"
done
! within test -e /var/lib/bursar/ledger.db || fail "an empty ledger was created in place of the lost one"
today 10
soon "tool foo has access after the rebuild of the ledger" as_foo
ends 0 bursar sync
quota() { within kubectl --kubeconfig /root/.kube/config -n tool-foo get resourcequota -o jsonpath='{.items[*].spec.hard.limits\.cpu}'; }
is "tool foo's larger quota" "$(quota)" 16
! within kubectl --kubeconfig /root/stolen auth can-i create pods >/dev/null 2>&1 || fail "the lost ledger revived a revoked kubeconfig"


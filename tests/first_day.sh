# Tasks 2 to 10 of docs/first-day.md, in the booted system of packages.sh, which sources this file after the
# installation. The other lines here do what the page leaves to the administrator's editor, and cause the accidents that
# it describes.

say "the first day, 2: connect"
sed -e 's|^urls = .*|urls = ["'"$(cat "$site/ldap-url")"'"]|' -e 's|https://k8s.tools.example.org:6443|'"$(cat "$site/k8s-url")"'|' \
    -e 's|cluster\.tools|cluster.prod|; s|clusters = \["tools"\]|clusters = ["prod"]|' \
    "$system/usr/share/doc/bursar/examples/toolforge.toml" >"$work/bursar.toml"
# Written in place: the file keeps the owner and the mode that the package gave it.
cat "$work/bursar.toml" >"$system/etc/bursar/bursar.toml"
install -m 0644 "$site/ldap-ca.pem" "$site/k8s-ca.pem" "$system/etc/bursar/"
install -m 0755 "$site/kubectl" "$system/usr/local/bin/"
install -D -m 0600 "$site/admin.kubeconfig" "$system/root/.kube/config"
install -m 0640 "$site/ldap-password" "$system/etc/bursar/credentials/"
within chown root:bursar /etc/bursar/credentials/ldap-password
# A home, so that /home does not look unmounted, and an address besides loopback, as a host has.
within install -d -m 0700 /home/bob
nsenter -t "$leader" -n -- ip address add 10.20.0.5/32 dev lo
for tool in baz:52501 qux:52502 foo:52503 bar:52504 quux:52505 corge:52506; do
    within install -d -m 0700 -o "${tool#*:}" -g "${tool#*:}" "/data/project/${tool%:*}"
done
today 2
prints '6 tools'

say "the first day, 3: plan"
# Exit code 2, because there are changes.
day_ends["bursar plan"]=2
today 3
prints '^\+ .*foo'

say "the first day, 4: sync"
today 4
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
soon "tool foo's access after resume" as_foo

say "the first day, 8: revoke"
within cp /data/project/foo/.kube/config /root/stolen
today 8
prints 'refuses older credentials'
! within kubectl --kubeconfig /root/stolen auth can-i create pods >/dev/null 2>&1 || fail "the stolen kubeconfig still works"
is "tool foo may create pods with the new one" "$(as_foo)" yes

say "the first day, 9: who had access"
today 9
prints 'laptop stolen'

say "the first day, 10: the ledger is lost"
within find /var/lib/bursar -name 'ledger.db*' -delete
today 10
soon "tool foo's access from the rebuilt ledger" as_foo
! within kubectl --kubeconfig /root/stolen auth can-i create pods >/dev/null 2>&1 || fail "the lost ledger revived a revoked kubeconfig"


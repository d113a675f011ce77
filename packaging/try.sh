#!/usr/bin/env bash
# Installs, upgrades, removes and purges a package of deb.sh in a copy of this system that is thrown away (an overlay):
# try.sh FILE.deb. Needs root on Debian or Ubuntu. Without systemd as process 1 the service is not started.
set -euo pipefail
deb=$(readlink -f "$1")
if [[ ${IN_NAMESPACE:-} != 1 ]]; then
	if command -v lintian >/dev/null; then
		lintian --fail-on error,warning --allow-root "$deb"
	else
		echo "lintian is not installed: not run"
	fi
	IN_NAMESPACE=1 exec unshare --mount "$0" "$deb"
fi
work=$(mktemp -d)
mount -t tmpfs tmpfs "$work"
mkdir "$work"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root"
mount --bind /proc "$work/root/proc"
mount --bind /dev "$work/root/dev"
cp "$deb" "$work/root/root/goiser.deb"
chroot "$work/root" bash -euo pipefail <<'END'
step() { printf '%s\n' "--- $*"; }
fail() { echo "FAIL: $*"; exit 1; }
step install
dpkg -i /root/goiser.deb >/dev/null
id iserd
[[ $(stat -c '%U:%G %a' /etc/iserd/iserd.yaml) == "root:iserd 640" ]] || fail "rights of the configuration"
setpriv --reuid=iserd --regid=iserd --clear-groups iserd check /etc/iserd/iserd.yaml
if setpriv --reuid=nobody --regid=nogroup --clear-groups cat /etc/iserd/iserd.yaml 2>/dev/null; then fail "everybody reads the configuration"; fi
man -w iserd iser iser-bench iser-config-import iserd.yaml >/dev/null || fail "manual"
[[ -L /etc/systemd/system/multi-user.target.wants/iserd.service ]] || fail "the service is not enabled"
! command -v systemd-analyze >/dev/null || systemd-analyze verify /lib/systemd/system/iserd.service
bash -c '. /usr/share/bash-completion/completions/iser' 2>&1 || fail "completion"
python3 -c 'import json; json.load(open("/usr/share/goiser/iserd.schema.json"))'

step "serve as the user iserd, without capabilities"
rm -rf /run/iserd # as after a boot
install -d -o iserd -g iserd -m 750 /var/lib/iserd /run/iserd
setpriv --reuid=iserd --regid=iserd --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs \
	iserd --config /etc/iserd/iserd.yaml --listen 127.99.0.1 2>/tmp/iserd.log &
daemon=$!
trap 'kill $daemon 2>/dev/null || true' EXIT # or it answers the next run, in this one's place
for _ in $(seq 300); do
	grep -q 'listening on 127.99.0.1:3260, iser' /tmp/iserd.log || ! kill -0 $daemon && break
	sleep 0.1
done
kill -0 $daemon || { cat /tmp/iserd.log; fail "it does not run"; }
for url in iscsi iser; do
	iser verify -q $url://127.99.0.1 --size 16MiB --destructive || { cat /tmp/iserd.log; fail "verify by $url"; }
done
iser backstore create more ram size=8MiB || { cat /tmp/iserd.log; fail "a change while it runs"; }
iser config save
grep -q '^  more:' /etc/iserd/iserd.yaml || fail "config save"
[[ $(stat -c '%a' /etc/iserd/iserd.yaml) == 640 ]] || fail "rights of the configuration saved: $(stat -c '%U:%G %a' /etc/iserd/iserd.yaml)"
sed -i 's/^  more:/  other:/' /etc/iserd/iserd.yaml
kill -HUP $daemon # as ExecReload does
for _ in $(seq 300); do
	iser backstore list | grep -q other && break
	sleep 0.1
done
iser backstore list | grep -q other || { cat /tmp/iserd.log; fail "it has not read its file again"; }
kill $daemon
wait $daemon || fail "it ended with $?"

step "upgrade keeps a changed configuration"
echo "# mine" >>/etc/iserd/iserd.yaml
touch /var/lib/iserd/disk.img
dpkg -i /root/goiser.deb >/dev/null
grep -q "# mine" /etc/iserd/iserd.yaml || fail "the configuration was replaced"

step "remove and purge leave disks"
dpkg -r goiser >/dev/null
[[ -e /etc/iserd/iserd.yaml ]] || fail "the configuration is gone"
dpkg -P goiser >/dev/null
[[ ! -e /etc/iserd ]] || fail "the configuration is still there"
[[ -e /var/lib/iserd/disk.img ]] || fail "a disk is gone"
echo PASS
END
umount -R "$work/root" "$work"
rmdir "$work"

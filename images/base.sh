#!/bin/sh
# Finish the root filesystem that mmdebstrap has extracted, given as the only argument; no script of a package has run.
set -eu
cd "$1"

# What image scanners read: without dpkg's database they would see no package.
mkdir -p var/lib/dpkg/status.d
for package in var/cache/apt/archives/*.deb; do
    dpkg-deb --field "$package" > "var/lib/dpkg/status.d/$(dpkg-deb --field "$package" Package)"
done
find var/lib/dpkg -mindepth 1 -maxdepth 1 ! -name status.d -exec rm -r {} +

# What belongs to this machine: its mirrors, its proxy, its name and its resolver.
rm -r etc/apt var/lib/apt var/cache var/log etc/resolv.conf etc/hostname tmp
rm -r usr/share/man usr/share/locale usr/share/lintian
find usr/share/doc ! -type d ! -name copyright -delete
find usr/share/doc -type d -empty -delete

mkdir proc sys
mkdir -m 1777 tmp
echo 'root:x:0:0::/:/usr/sbin/nologin
berth:x:65532:65532::/:/usr/sbin/nologin' > etc/passwd
echo 'root:x:0:
berth:x:65532:' > etc/group
echo 'hosts: files dns' > etc/nsswitch.conf
[ ! -e usr/bin/dash ] || ln -sf dash usr/bin/sh

# By the hash of the source: an image's times are all the same, and no container may write there.
chroot . /usr/bin/python3 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3.11 /usr/lib/python3

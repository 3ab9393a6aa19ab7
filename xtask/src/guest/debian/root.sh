# Makes the root of a Debian system of the packages in /packages, and prints it as an archive.
set -e
root=/debian
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C HOME=/root DEBIAN_FRONTEND=noninteractive

# Debian 13's package base-files brings these links, and cannot be unpacked over them; in Debian 12, nothing does.
mkdir -p $root/usr/bin $root/usr/sbin $root/usr/lib $root/usr/lib64 $root/packages
linked=
if dpkg-deb -c /packages/base-files.deb | grep -q -e '-> usr/bin$'; then
    linked=/packages/base-files.deb
    dpkg-deb -x $linked $root
else
    for name in bin sbin lib lib64; do ln -s usr/$name $root/$name; done
fi

# What no test reads would lie in every guest's memory.
mkdir -p $root/var/lib/dpkg $root/etc/dpkg/dpkg.cfg.d
touch $root/var/lib/dpkg/status
for part in doc info lintian locale man; do echo "path-exclude=/usr/share/$part/*"; done > $root/etc/dpkg/dpkg.cfg.d/guest

# dpkg runs on files of the packages that it then installs.
for package in /packages/*.deb; do [ $package = "$linked" ] || dpkg-deb -x $package $root; done
for folder in dev proc sys packages; do mount -o bind /$folder $root/$folder; done
printf '#!/bin/sh\nexit 101\n' > $root/usr/sbin/policy-rc.d
chmod 755 $root/usr/sbin/policy-rc.d
# By its path, as busybox has a dpkg too.
in_root() { chroot $root /usr/bin/dpkg --force-unsafe-io "$@" >&2; }
# Scripts of the others use these without a dependency.
for first in base-passwd base-files dpkg libc6 perl-base mawk debconf; do in_root --force-depends --install /packages/$first.deb; done
in_root --force-depends --unpack $(echo /packages/*.deb)
in_root --configure --pending
missing=$(chroot $root /usr/bin/dpkg --audit)
if [ -n "$missing" ]; then echo "$missing" >&2; exit 1; fi
rm $root/usr/sbin/policy-rc.d
for folder in dev proc sys packages; do umount $root/$folder; done
rmdir $root/packages

# The guest's own program runs the script, once the system is up. If it is killed, the guest ends.
units=$root/etc/systemd/system
cat > $units/rig.service <<UNIT
[Unit]
After=multi-user.target
FailureAction=poweroff-force
SuccessAction=poweroff-force
[Service]
Type=exec
ExecStart=/usr/local/bin/guest-init
TasksMax=infinity
LimitNOFILE=524288
UNIT
mkdir -p $units/multi-user.target.wants
ln -s ../rig.service $units/multi-user.target.wants/rig.service

cd /
find debian | cpio -o -H newc

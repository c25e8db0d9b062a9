#!/bin/busybox sh
# First process of the guest: mounts the host's root file system read-only with a throw-away layer on top and
# steps into it. Runs from an initramfs that holds busybox, the modules named in /order and nothing else.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
for module in $($b cat /order); do $b insmod "/modules/$module"; done
options=trans=virtio,version=9p2000.L,msize=262144
$b mount -t 9p -o $options,cache=loose,ro root /lower
$b mount -t tmpfs layer /layer
$b mkdir /layer/up /layer/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/layer/up,workdir=/layer/work root /new
for dir in proc sys dev; do $b mount --move /$dir /new/$dir; done
$b mkdir -p /new/lib/modules /new/job /new/dev/shm
for dir in run dev/shm; do $b mount -t tmpfs tmpfs /new/$dir; done
$b mount -t 9p -o $options,cache=loose,ro modules /new/lib/modules
$b mount -t 9p -o $options job /new/job
$b chroot /new /bin/bash /job/agent.sh
echo o >/new/proc/sysrq-trigger
$b sleep 10

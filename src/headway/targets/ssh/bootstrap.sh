#!/bin/bash
# Readies a bare Debian or Ubuntu for training. What is there already is left as it is: it may be run again at any time.
# bootstrap.sh [--gpu] [--docker] [--scratch DEVICE] [--at FOLDER]
set -eu
gpu="" docker="" scratch="" at=/scratch
while [ $# -gt 0 ]; do
  case $1 in
    --gpu) gpu=yes ;;
    --docker) docker=yes ;;
    --scratch) scratch=$2; shift ;;
    --at) at=$2; shift ;;
    *) echo "headway: bootstrap does not know $1" >&2; exit 2 ;;
  esac
  shift
done
fail() { echo "headway: bootstrap: $1" >&2; exit 1; }
did() { echo "$1"; }
export DEBIAN_FRONTEND=noninteractive

# shellcheck disable=SC1091
. /etc/os-release 2> /dev/null || fail "this is neither Debian nor Ubuntu"
case " ${ID:-} ${ID_LIKE:-} " in *" debian "* | *" ubuntu "*) ;; *) fail "this is ${PRETTY_NAME:-no Debian}, and not Debian or Ubuntu" ;; esac
if [ "$(id -u)" = 0 ]; then root() { "$@"; }; else
  if ! sudo -n true 2> /dev/null; then fail "needs root, or sudo without a password"; fi
  root() { sudo -n env DEBIAN_FRONTEND=noninteractive "$@"; }
fi

updated=""
install() {  # only what is missing, and the lists of packages only if something is
  local missing=()
  for package in "$@"; do
    [ "$(dpkg-query -W -f '${Status}' "$package" 2> /dev/null)" = "install ok installed" ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$updated" ] || { root apt-get update -qq; updated=yes; }
  # A fresh machine may be updating itself: its lock is waited for.
  root apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=600 "${missing[@]}" > /dev/null
  did "installed ${missing[*]}"
}

install python3 python3-venv python3-pip ca-certificates util-linux

has_gpu() { grep -qsi 0x10de /sys/bus/pci/devices/*/vendor; }
if [ "$gpu" ] && has_gpu; then
  if [ ! -e /sys/module/nvidia/version ]; then
    if [ "${ID:-}" = ubuntu ]; then
      install ubuntu-drivers-common "linux-headers-$(uname -r)"
      root ubuntu-drivers install --gpgpu > /dev/null
    else
      if ! grep -rqsE '^[^#]*(non-free( |$)|Components:.*non-free( |$))' /etc/apt/sources.list /etc/apt/sources.list.d; then
        echo "deb http://deb.debian.org/debian ${VERSION_CODENAME:?} contrib non-free non-free-firmware" \
          | root tee /etc/apt/sources.list.d/headway-non-free.list > /dev/null
        updated=""
      fi
      install "linux-headers-$(uname -r)" nvidia-driver
    fi
    root modprobe nvidia 2> /dev/null || fail "the NVIDIA driver is installed and wants a restart: sudo reboot, then again"
    did "installed the NVIDIA driver $(cat /sys/module/nvidia/version)"
  fi
elif [ "$gpu" ]; then
  did "no NVIDIA device is here: no driver is installed"
fi

if [ "$scratch" ]; then
  [ -b "$scratch" ] || fail "$scratch is no device: lsblk shows them"
  mounted=$(findmnt -n -o TARGET --source "$scratch" | head -n 1)
  if [ -z "$mounted" ]; then
    install e2fsprogs
    if [ -n "$(root wipefs --noheadings "$scratch")" ] || [ "$(lsblk -n -o NAME "$scratch" | wc -l)" -gt 1 ]; then
      # Only what an earlier bootstrap has made is mounted; nothing that carries a signature is ever formatted.
      [ "$(root blkid -o value -s LABEL "$scratch")" = headway-scratch ] \
        || fail "$scratch carries data already ($(root blkid -o value -s TYPE "$scratch" || echo partitions)): it is not touched; \
mount it yourself, or empty it with: sudo wipefs --all $scratch"
    else
      root mkfs.ext4 -q -L headway-scratch "$scratch"
      did "formatted $scratch"
    fi
    root mkdir -p "$at"
    root mount "$scratch" "$at"
    root chmod 1777 "$at"
    grep -qs "LABEL=headway-scratch " /etc/fstab \
      || echo "LABEL=headway-scratch $at ext4 defaults,nofail 0 2" | root tee -a /etc/fstab > /dev/null
    did "mounted $scratch at $at"
    mounted=$at
  fi
  at=$mounted
fi

if [ "$docker" ]; then
  install docker.io
  changed=""
  if [ "$scratch" ] && ! grep -qs '"data-root"' /etc/docker/daemon.json; then
    root mkdir -p /etc/docker "$at/docker"
    root python3 - "$at/docker" << 'PYTHON'
import json, os, sys
path = "/etc/docker/daemon.json"
known = json.load(open(path)) if os.path.exists(path) and os.path.getsize(path) else {}
known["data-root"] = sys.argv[1]
with open(path + ".new", "w") as file:
    json.dump(known, file, indent=2)
os.replace(path + ".new", path)
PYTHON
    changed=yes
    did "Docker keeps its images in $at/docker"
  fi
  if [ "$gpu" ] && has_gpu && ! command -v nvidia-ctk > /dev/null; then
    install curl gnupg
    keys=/usr/share/keyrings/nvidia-container-toolkit.gpg
    curl -fsSL https://nvidia.github.io/libnvidia-container/gpgkey | root gpg --batch --yes --dearmor -o "$keys"
    echo "deb [signed-by=$keys] https://nvidia.github.io/libnvidia-container/stable/deb/\$(ARCH) /" \
      | root tee /etc/apt/sources.list.d/nvidia-container-toolkit.list > /dev/null
    updated=""
    install nvidia-container-toolkit
    root nvidia-ctk runtime configure --runtime=docker > /dev/null
    changed=yes
  fi
  if [ "$changed" ] && command -v systemctl > /dev/null; then root systemctl restart docker; fi
  if [ "$(id -u)" != 0 ] && ! id -nG | grep -qw docker; then
    root usermod -aG docker "$(id -un)"
    did "$(id -un) may use Docker from its next connection on"
  fi
fi
did ready

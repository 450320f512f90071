# shellcheck shell=bash
# Functions that unpack Debian packages into a directory, as for an empty system. Scripts that source this
# file define `fail MESSAGE`, which ends them.

# download_packages DIR PACKAGE...: downloads packages and all their dependencies into DIR.
download_packages() {
    local directory=$1
    shift
    mkdir -p "$directory/partial"
    apt-get -qq --yes --no-install-recommends --download-only \
        -o Debug::NoLocking=1 -o APT::Sandbox::User=root -o Dpkg::Use-Pty=0 \
        -o Dir::State::status=/dev/null -o Dir::Cache::archives="$directory" \
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        install "$@" >&2 || fail "apt-get cannot download the packages: run apt-get update first"
}

# unpack_packages DIR ROOT: unpacks the packages of DIR into ROOT, and runs no script of theirs.
unpack_packages() {
    local directory=$1 root=$2 package
    mkdir -p "$root"/{usr/{bin,sbin,lib,lib64},dev,proc,sys,tmp}
    for package in bin sbin lib lib64; do ln -s "usr/$package" "$root/$package"; done
    for package in "$directory"/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x --keep-directory-symlink --no-same-owner -C "$root" ||
            fail "cannot unpack ${package##*/}"
    done
    [ -e "$root/bin/sh" ] || ln -s dash "$root/bin/sh"
}

#!/bin/sh
# demo-image.sh VOLT_VMM ARCHIVE IMAGE: loads an image, runs it, and works in a VM of it. This is the part of
# quickstart.sh that shows images. It runs on the host, or with busybox's sh in the lab, where VOLT_GUEST
# names the directory of the guest's files.
set -eu

volt=$1 archive=$2 image=$3
name=volt-demo-$$

finish() { "$volt" rm --force "$name" >/dev/null 2>&1 || :; }
trap finish EXIT
trap 'exit 130' INT TERM

fail() {
    echo "demo-image: $1" >&2
    exit 1
}

show() {
    echo "  \$ volt-vmm $*" >&2
    "$volt" "$@"
}

show image load "$archive"
# shellcheck disable=SC2016 # the guest's shell expands it
said=$(show run --rm "$image" sh -c 'echo "hello from $(uname -sr)"')
echo "  $said"
case $said in "hello from Linux "*) ;; *) fail "the image did not say hello, but: $said" ;; esac
show run --detach --name "$name" "$image" sh -c 'while :; do sleep 1; done' >/dev/null
show exec "$name" sh -c 'echo kept >/file'
[ "$(show exec "$name" cat /file)" = kept ] || fail "the VM lost its file"
show cp "$name:/file" "${TMPDIR:-/tmp}/$name"
[ "$(cat "${TMPDIR:-/tmp}/$name")" = kept ] || fail "the copy differs"
rm -f "${TMPDIR:-/tmp}/$name"
show stop "$name"

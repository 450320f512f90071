# shellcheck shell=bash
# Modules that a stock kernel needs to run an image. Scripts source this file.
# shellcheck disable=SC2034
IMAGE_MODULES="virtio_mmio virtio_blk erofs overlay ext4 vmw_vsock_virtio_transport virtio_net virtio_rng"

//go:build !sdk_main

package main

import (
	firecracker "github.com/firecracker-microvm/firecracker-go-sdk"
	models "github.com/firecracker-microvm/firecracker-go-sdk/client/models"
)

// Version 1.0.0 has no memory backends.
func withMemory(memory, state string, more firecracker.WithSnapshotOpt) firecracker.Opt {
	return firecracker.WithSnapshot(memory, state, more)
}

func trackDirtyPages(config *models.MachineConfiguration) {
	config.TrackDirtyPages = true
}

func tracksDirtyPages(config models.MachineConfiguration) bool {
	return config.TrackDirtyPages
}

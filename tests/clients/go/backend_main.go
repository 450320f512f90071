//go:build sdk_main

package main

import (
	"os"

	firecracker "github.com/firecracker-microvm/firecracker-go-sdk"
	models "github.com/firecracker-microvm/firecracker-go-sdk/client/models"
)

// The memory by VOLT_BACKEND (File or Uffd) and VOLT_BACKEND_PATH, if these are given.
func withMemory(memory, state string, more firecracker.WithSnapshotOpt) firecracker.Opt {
	if kind := os.Getenv("VOLT_BACKEND"); kind != "" {
		backend := firecracker.WithMemoryBackend(kind, os.Getenv("VOLT_BACKEND_PATH"))
		return firecracker.WithSnapshot("", state, backend, more)
	}
	return firecracker.WithSnapshot(memory, state, more)
}

func trackDirtyPages(config *models.MachineConfiguration) {
	config.TrackDirtyPages = firecracker.Bool(true)
}

func tracksDirtyPages(config models.MachineConfiguration) bool {
	return config.TrackDirtyPages != nil && *config.TrackDirtyPages
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	firecracker "github.com/firecracker-microvm/firecracker-go-sdk"
)

const readyLinux = "volt-init: ready "

// Asks Linux to shut down, as its power button does, and waits for the end of the process with status 0.
func (g *guest) shutDown(ctx context.Context) error {
	if err := g.Shutdown(ctx); err != nil {
		return fmt.Errorf("shut down: %w", err)
	}
	// The module waits for the copy of the process's input, which ends with the keys.
	_ = g.keys.Close()
	if err := g.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the end: %w", err)
	}
	return nil
}

// Boots Linux with a log in a FIFO, snapshots it and shuts it down. Then shuts down a VM that runs from the
// snapshot.
func linux(ctx context.Context) error {
	fifo := filepath.Join(os.Getenv("VOLT_BASE"), "linux.fifo")
	logged := &console{}
	started, err := startGuest(ctx, "linux", func(config *firecracker.Config) {
		config.KernelArgs, config.InitrdPath = os.Getenv("VOLT_BOOT_ARGS"), os.Getenv("VOLT_INITRD")
		config.MachineCfg.MemSizeMib = firecracker.Int64(128)
		config.LogPath, config.LogFifo, config.FifoLogWriter = "", fifo, logged
	}, asTheyAre)
	if err != nil {
		return err
	}
	defer started.abandon()
	if _, err := started.console.awaitLine(readyLinux, 0); err != nil {
		return err
	}
	if err := started.PauseVM(ctx); err != nil {
		return err
	}
	memory, state := snapshotFiles()
	if err := started.CreateSnapshot(ctx, memory, state); err != nil {
		return err
	}
	if err := started.ResumeVM(ctx); err != nil {
		return err
	}
	if err := started.shutDown(ctx); err != nil {
		return err
	}
	if !strings.Contains(logged.text(), ":INFO] snapshot "+state) {
		return errors.New("the log does not name the snapshot: " + logged.text())
	}
	fmt.Println("first: shut down")
	return restoredLinux(ctx, memory, state)
}

func restoredLinux(ctx context.Context, memory, state string) error {
	resumed := func(config *firecracker.SnapshotConfig) { config.ResumeVM = true }
	restored, err := startGuest(ctx, "clone", func(*firecracker.Config) {}, asTheyAre,
		withMemory(memory, state, resumed))
	if err != nil {
		return err
	}
	defer restored.abandon()
	if err := restored.shutDown(ctx); err != nil {
		return err
	}
	fmt.Println("clone: shut down")
	return nil
}

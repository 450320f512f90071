package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	firecracker "github.com/firecracker-microvm/firecracker-go-sdk"
)

// The configuration of a machine without a jail, whose socket, log and metrics lie in VOLT_BASE.
func plainConfiguration(name string) firecracker.Config {
	config := configuration(-1)
	config.JailerCfg = nil
	config.VMID = name
	config.SocketPath = filepath.Join(os.Getenv("VOLT_BASE"), name+".sock")
	config.LogPath = filepath.Join(os.Getenv("VOLT_BASE"), name+".log")
	config.LogLevel = "Debug"
	config.MetricsPath = filepath.Join(os.Getenv("VOLT_BASE"), name+".metrics")
	return config
}

// A machine without a jail.
func plain(ctx context.Context, name string, options ...firecracker.Opt) (*firecracker.Machine, error) {
	config := plainConfiguration(name)
	command := firecracker.VMCommandBuilder{}.
		WithBin(os.Getenv("VOLT_VMM")).
		WithSocketPath(config.SocketPath).
		AddArgs("--id", name).
		WithStdout(os.Stderr).
		WithStderr(os.Stderr).
		Build(ctx)
	options = append(options, firecracker.WithProcessRunner(command))
	return firecracker.NewMachine(ctx, config, options...)
}

// Waits until the guest has written other data to its disk.
func guestWritesAnew() error {
	before, err := os.ReadFile(os.Getenv("VOLT_DISK"))
	if err != nil {
		return err
	}
	return waitForDisk(func(sector []byte) bool { return !bytes.Equal(sector, before[:512]) })
}

func end(ctx context.Context, machine *firecracker.Machine) error {
	if err := machine.StopVMM(); err != nil {
		return err
	}
	fmt.Println("ended:", machine.Wait(ctx))
	return nil
}

// The memory file and the state file of a snapshot.
func snapshotFiles() (string, string) {
	directory := os.Getenv("VOLT_BASE")
	return filepath.Join(directory, "memory"), filepath.Join(directory, "state")
}

// Snapshots a VM, and runs another one from the snapshot.
func snapshot(ctx context.Context) error {
	if err := takeSnapshot(ctx); err != nil {
		return err
	}
	return loadSnapshot(ctx)
}

func takeSnapshot(ctx context.Context) error {
	first, err := plain(ctx, "first")
	if err != nil {
		return err
	}
	if err := first.Start(ctx); err != nil {
		return err
	}
	defer func() { _ = first.StopVMM() }()
	if err := guestWrites(); err != nil {
		return err
	}
	if err := first.PauseVM(ctx); err != nil {
		return err
	}
	if err := first.ResumeVM(ctx); err != nil {
		return err
	}
	if err := guestWritesAnew(); err != nil {
		return err
	}
	// It ends paused, so that the disk is as the snapshot's guest knows it.
	if err := first.PauseVM(ctx); err != nil {
		return err
	}
	memory, state := snapshotFiles()
	if err := first.CreateSnapshot(ctx, memory, state); err != nil {
		return err
	}
	return end(ctx, first)
}

func loadSnapshot(ctx context.Context) error {
	memory, state := snapshotFiles()
	resumed := func(config *firecracker.SnapshotConfig) { config.ResumeVM = true }
	second, err := plain(ctx, "second", withMemory(memory, state, resumed))
	if err != nil {
		return err
	}
	started := time.Now()
	if err := second.Start(ctx); err != nil {
		return err
	}
	defer func() { _ = second.StopVMM() }()
	fmt.Println("restored in", time.Since(started))
	info, err := second.DescribeInstanceInfo(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("info: id=%s state=%s\n", *info.ID, *info.State)
	if err := guestWritesAnew(); err != nil {
		return err
	}
	return end(ctx, second)
}

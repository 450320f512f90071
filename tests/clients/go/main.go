// Boots a VM in a jail with firecracker-go-sdk, watches it work and ends it, by the module's own means alone.
// tests/clients/main.rs starts it.
//
// An argument is the NUMA node whose processors and memory the jail gets, or -1. Environment: VOLT_VMM,
// VOLT_JAILER, VOLT_BASE (directory of jails), VOLT_ID, VOLT_USER, VOLT_GROUP, VOLT_KERNEL, VOLT_BOOT_ARGS,
// VOLT_CGROUP_VERSION, VOLT_SECCOMP (on or off) and VOLT_DISK, to which the guest writes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	firecracker "github.com/firecracker-microvm/firecracker-go-sdk"
	models "github.com/firecracker-microvm/firecracker-go-sdk/client/models"
)

// Longest wait.
const patience = 60 * time.Second

func number(name string) *int {
	found, err := strconv.Atoi(os.Getenv(name))
	if err != nil {
		fail(fmt.Errorf("%s: %w", name, err))
	}
	return &found
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "go-sdk:", err)
	os.Exit(1)
}

func configuration(node int) firecracker.Config {
	kernel, disk := os.Getenv("VOLT_KERNEL"), os.Getenv("VOLT_DISK")
	return firecracker.Config{
		// The default place in the jail is /run/firecracker.socket.
		KernelImagePath: kernel,
		KernelArgs:      os.Getenv("VOLT_BOOT_ARGS"),
		Drives: []models.Drive{{
			DriveID:      firecracker.String("disk"),
			PathOnHost:   &disk,
			IsRootDevice: firecracker.Bool(true),
			IsReadOnly:   firecracker.Bool(false),
		}},
		MachineCfg: models.MachineConfiguration{
			VcpuCount:  firecracker.Int64(1),
			MemSizeMib: firecracker.Int64(64),
		},
		Seccomp: firecracker.SeccompConfig{Enabled: os.Getenv("VOLT_SECCOMP") == "on"},
		JailerCfg: &firecracker.JailerConfig{
			ID:             os.Getenv("VOLT_ID"),
			UID:            number("VOLT_USER"),
			GID:            number("VOLT_GROUP"),
			NumaNode:       &node,
			ExecFile:       os.Getenv("VOLT_VMM"),
			JailerBinary:   os.Getenv("VOLT_JAILER"),
			ChrootBaseDir:  os.Getenv("VOLT_BASE"),
			CgroupVersion:  os.Getenv("VOLT_CGROUP_VERSION"),
			ChrootStrategy: firecracker.NewNaiveChrootStrategy(kernel),
			Stdout:         os.Stdout,
			Stderr:         os.Stderr,
		},
	}
}

// Waits until the guest has written to the first sector of its disk.
func guestWrites(disk string) error {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		content, err := os.ReadFile(disk)
		if err != nil {
			return err
		}
		for _, b := range content[:512] {
			if b != 0 {
				return nil
			}
		}
	}
	return errors.New("the guest writes nothing to its disk")
}

func run(ctx context.Context, machine *firecracker.Machine) error {
	if err := machine.Start(ctx); err != nil {
		return err
	}
	defer func() { _ = machine.StopVMM() }()
	info, err := machine.DescribeInstanceInfo(ctx)
	if err != nil {
		return err
	}
	pid, err := machine.PID()
	if err != nil {
		return err
	}
	fmt.Printf("info: id=%s state=%s pid=%d\n", *info.ID, *info.State, pid)
	if err := guestWrites(os.Getenv("VOLT_DISK")); err != nil {
		return err
	}
	if err := machine.StopVMM(); err != nil {
		return err
	}
	// SIGTERM ends a VM with an error.
	fmt.Println("ended:", machine.Wait(ctx))
	if _, err := os.Stat(machine.Cfg.SocketPath); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the socket is left: %w", err)
	}
	return nil
}

func main() {
	node := -1
	if len(os.Args) > 1 {
		found, err := strconv.Atoi(os.Args[1])
		if err != nil {
			fail(err)
		}
		node = found
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	machine, err := firecracker.NewMachine(ctx, configuration(node))
	if err != nil {
		fail(err)
	}
	if err := run(ctx, machine); err != nil {
		fail(err)
	}
	// The module leaves the jail to its user.
	config := machine.Cfg.JailerCfg
	jail := filepath.Join(config.ChrootBaseDir, filepath.Base(config.ExecFile), config.ID)
	if err := os.RemoveAll(jail); err != nil {
		fail(err)
	}
}

// Boots a VM in a jail with firecracker-go-sdk, watches it work and ends it, by the module's own means alone.
// tests/clients/main.rs starts it.
//
// An argument is the NUMA node whose processors and memory the jail gets, or -1. With a word of `acts` in its
// place, the VM has no jail (snapshot.go, devices.go, linux.go). Environment: VOLT_VMM, VOLT_JAILER,
// VOLT_BASE (directory of jails), VOLT_ID, VOLT_USER, VOLT_GROUP, VOLT_KERNEL, VOLT_BOOT_ARGS,
// VOLT_CGROUP_VERSION, VOLT_SECCOMP (on or off), VOLT_DISK, to which the guest writes, VOLT_TAP, VOLT_INITRD,
// VOLT_BACKEND and VOLT_BACKEND_PATH.
//
// go.mod has the module's version 1.0.0. main.mod has its main branch, for `go build -modfile=main.mod -tags
// sdk_main`.
package main

import (
	"bytes"
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
const patience = 180 * time.Second

var acts = map[string]func(context.Context) error{
	"snapshot": snapshot, "take": takeSnapshot, "load": loadSnapshot, "handlers": customHandlers,
	"drives": drives, "metadata": metadata, "vsock": sockets, "balloon": balloon, "linux": linux,
}

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
			// Lines of this program stay whole.
			Stdout:         os.Stderr,
			Stderr:         os.Stderr,
		},
	}
}

// Waits until a condition holds.
func await(what string, holds func() (bool, error)) error {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if found, err := holds(); found || err != nil {
			return err
		}
	}
	return fmt.Errorf("waited %v in vain for %s", patience, what)
}

// Waits until the first sector of the guest's disk is as wanted.
func waitForDisk(isAsWanted func([]byte) bool) error {
	return await("writes of the guest to its disk", func() (bool, error) {
		content, err := os.ReadFile(os.Getenv("VOLT_DISK"))
		return err == nil && isAsWanted(content[:512]), err
	})
}

// Waits until the guest has written to its disk.
func guestWrites() error {
	return waitForDisk(func(sector []byte) bool { return !bytes.Equal(sector, make([]byte, 512)) })
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
	if err := guestWrites(); err != nil {
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
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	node := -1
	if len(os.Args) > 1 {
		if act, found := acts[os.Args[1]]; found {
			if err := act(ctx); err != nil {
				fail(err)
			}
			return
		}
		found, err := strconv.Atoi(os.Args[1])
		if err != nil {
			fail(err)
		}
		node = found
	}
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

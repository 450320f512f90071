package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	firecracker "github.com/firecracker-microvm/firecracker-go-sdk"
	models "github.com/firecracker-microvm/firecracker-go-sdk/client/models"
	"github.com/firecracker-microvm/firecracker-go-sdk/client/operations"
	"github.com/firecracker-microvm/firecracker-go-sdk/vsock"
)

const (
	disk      = "disk" // of the drive, and the behaviour of its guest
	vsockPort = 1000   // at which the small guest listens
)

// What the guest writes to its console.
type console struct {
	mutex sync.Mutex
	bytes bytes.Buffer
}

func (c *console) Write(more []byte) (int, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.bytes.Write(more)
}

func (c *console) text() string {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.bytes.String()
}

// The rest of a line that starts so, after the first ones. A line may come in parts, and counts once it is
// whole.
func (c *console) line(start string, skipped int) (string, bool) {
	text := c.text()
	lines := bufio.NewScanner(strings.NewReader(text[:strings.LastIndex(text, "\n")+1]))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), start) {
			if skipped == 0 {
				return lines.Text()[len(start):], true
			}
			skipped--
		}
	}
	return "", false
}

func (c *console) awaitLine(start string, skipped int) (string, error) {
	var rest string
	err := await("a line with "+start, func() (bool, error) {
		line, found := c.line(start, skipped)
		rest = line
		return found, nil
	})
	return rest, err
}

// A small guest whose behaviour drives one kind of device.
type guest struct {
	*firecracker.Machine
	console *console
	keys    io.WriteCloser
}

// Starts a machine with changes to its configuration and its handlers.
func startGuest(
	ctx context.Context, behaviour string,
	change func(*firecracker.Config), handlers func(*firecracker.Handlers), options ...firecracker.Opt,
) (*guest, error) {
	keys, typed := io.Pipe()
	started := &guest{console: &console{}, keys: typed}
	config := plainConfiguration(behaviour)
	config.KernelArgs = behaviour
	config.Drives = nil
	change(&config)
	command := firecracker.VMCommandBuilder{}.
		WithBin(os.Getenv("VOLT_VMM")).
		WithSocketPath(config.SocketPath).
		AddArgs("--id", behaviour).
		WithStdin(keys).
		WithStdout(io.MultiWriter(os.Stderr, started.console)).
		WithStderr(os.Stderr).
		Build(ctx)
	options = append(options, firecracker.WithProcessRunner(command))
	machine, err := firecracker.NewMachine(ctx, config, options...)
	if err != nil {
		return nil, err
	}
	handlers(&machine.Handlers)
	started.Machine = machine
	if err := machine.Start(ctx); err != nil {
		started.abandon()
		return nil, err
	}
	return started, nil
}

// The module waits for the copy of the process's input, which ends with the keys.
func (g *guest) end(ctx context.Context) error {
	_ = g.keys.Close()
	return end(ctx, g.Machine)
}

// Ends a machine after an error.
func (g *guest) abandon() {
	_ = g.keys.Close()
	_ = g.StopVMM()
}

func asTheyAre(*firecracker.Handlers) {}

func bucket(size int64) models.TokenBucket {
	builder := firecracker.TokenBucketBuilder{}.WithBucketSize(size)
	return builder.WithRefillDuration(100 * time.Millisecond).Build()
}

func limits() *models.RateLimiter {
	return firecracker.NewRateLimiter(bucket(1<<20), bucket(1000))
}

// The machine's configuration, and handlers of the client's own.
func customHandlers(ctx context.Context) error {
	var called []string
	own := func(name string) firecracker.Handler {
		return firecracker.Handler{Name: name, Fn: func(context.Context, *firecracker.Machine) error {
			called = append(called, name)
			return nil
		}}
	}
	started, err := startGuest(ctx, "hello", func(config *firecracker.Config) {
		config.KernelArgs = "count"
		config.MachineCfg.VcpuCount = firecracker.Int64(2)
		config.MachineCfg.Smt = firecracker.Bool(true)
		trackDirtyPages(&config.MachineCfg)
	}, func(handlers *firecracker.Handlers) {
		handlers.Validation = handlers.Validation.Prepend(own("volt.Validate"))
		handlers.FcInit = handlers.FcInit.
			AppendAfter(firecracker.CreateBootSourceHandlerName, own("volt.AfterBootSource")).
			Remove(firecracker.AddVsocksHandlerName).
			Append(own("volt.Last"))
	})
	if err != nil {
		return err
	}
	defer started.abandon()
	if _, err := started.console.awaitLine("count ", 0); err != nil {
		return err
	}
	fmt.Println("handlers:", strings.Join(called, " "))
	found := started.Cfg.MachineCfg
	fmt.Printf("machine: vcpus=%d memory=%d smt=%t dirty=%t\n",
		*found.VcpuCount, *found.MemSizeMib, *found.Smt, tracksDirtyPages(found))
	return started.end(ctx)
}

// A drive with a rate limit, which another file replaces.
func drives(ctx context.Context) error {
	other := filepath.Join(os.Getenv("VOLT_BASE"), "other.img")
	started, err := startGuest(ctx, disk, func(config *firecracker.Config) {
		config.Drives = firecracker.NewDrivesBuilder(os.Getenv("VOLT_DISK")).
			WithRootDrive(os.Getenv("VOLT_DISK"), firecracker.WithDriveID(disk),
				firecracker.WithRateLimiter(*limits()), firecracker.WithCacheType("Writeback")).
			Build()
	}, asTheyAre)
	if err != nil {
		return err
	}
	defer started.abandon()
	if err := guestWrites(); err != nil {
		return err
	}
	// The guest checks what it has written, so the other file has the same content.
	if err := started.PauseVM(ctx); err != nil {
		return err
	}
	before, err := os.ReadFile(os.Getenv("VOLT_DISK"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(other, before, 0o600); err != nil {
		return err
	}
	withLimit := func(params *operations.PatchGuestDriveByIDParams) { params.Body.RateLimiter = limits() }
	if err := started.UpdateGuestDrive(ctx, disk, other, withLimit); err != nil {
		return err
	}
	if err := started.ResumeVM(ctx); err != nil {
		return err
	}
	err = await("writes of the guest to the other file", func() (bool, error) {
		content, err := os.ReadFile(other)
		return err == nil && !bytes.Equal(content[:512], before[:512]), err
	})
	if err != nil {
		return err
	}
	fmt.Println("drives: replaced")
	return started.end(ctx)
}

// A tap, whose limits change, and the metadata service behind it, which the guest asks.
func metadata(ctx context.Context) error {
	started, err := startGuest(ctx, "metadata", func(config *firecracker.Config) {
		config.NetworkInterfaces = firecracker.NetworkInterfaces{{
			StaticConfiguration: &firecracker.StaticNetworkConfiguration{
				HostDevName: os.Getenv("VOLT_TAP"), MacAddress: "02:00:00:00:00:02",
			},
			AllowMMDS:      true,
			InRateLimiter:  limits(),
			OutRateLimiter: limits(),
		}}
		config.MmdsVersion = firecracker.MMDSv2
	}, asTheyAre)
	if err != nil {
		return err
	}
	defer started.abandon()
	if err := started.UpdateGuestNetworkInterfaceRateLimit(ctx, "1", firecracker.RateLimiterSet{
		InRateLimiter: limits(), OutRateLimiter: limits(),
	}); err != nil {
		return err
	}
	type tree = map[string]interface{}
	if err := started.SetMetadata(ctx, tree{"latest": tree{"user-data": "first", "id": "7"}}); err != nil {
		return err
	}
	if _, err := started.console.awaitLine("ready", 0); err != nil {
		return err
	}
	// A token, and the data with it.
	ask := func(order string, skipped int) (string, error) {
		if _, err := started.keys.Write([]byte(order)); err != nil {
			return "", err
		}
		return started.console.awaitLine(order+" ", skipped)
	}
	if _, err := ask("t", 0); err != nil {
		return err
	}
	first, err := ask("g", 0)
	if err != nil {
		return err
	}
	if err := started.UpdateMetadata(ctx, tree{"latest": tree{"user-data": "second"}}); err != nil {
		return err
	}
	second, err := ask("g", 1)
	if err != nil {
		return err
	}
	var found tree
	if err := started.GetMetadata(ctx, &found); err != nil {
		return err
	}
	if !reflect.DeepEqual(found, tree{"latest": tree{"user-data": "second", "id": "7"}}) {
		return fmt.Errorf("other metadata: %v", found)
	}
	fmt.Printf("metadata: %s, then %s\n", first, second)
	return started.end(ctx)
}

// A vsock device, to which the module's own package dials.
func sockets(ctx context.Context) error {
	path := filepath.Join(os.Getenv("VOLT_BASE"), "guest.vsock")
	started, err := startGuest(ctx, "vsock", func(config *firecracker.Config) {
		config.VsockDevices = []firecracker.VsockDevice{{ID: "vsock", Path: path, CID: 5}}
	}, asTheyAre)
	if err != nil {
		return err
	}
	defer started.abandon()
	// The guest does not listen at once.
	connection, err := vsock.DialContext(ctx, path, vsockPort)
	if err != nil {
		return err
	}
	sent, found := bytes.Repeat([]byte("vsock"), 4000), make([]byte, 20000)
	failed := make(chan error, 1)
	go func() {
		_, err := connection.Write(sent)
		failed <- err
	}()
	if _, err := io.ReadFull(connection, found); err != nil {
		return err
	}
	if err := <-failed; err != nil {
		return err
	}
	if !bytes.Equal(sent, found) {
		return fmt.Errorf("the guest answers other bytes")
	}
	fmt.Println("vsock: echoes from", connection.RemoteAddr())
	if err := connection.Close(); err != nil {
		return err
	}
	return started.end(ctx)
}

// A balloon of a handler that comes before the start, which grows.
func balloon(ctx context.Context) error {
	withBalloon := func(handlers *firecracker.Handlers) {
		handlers.FcInit = handlers.FcInit.Append(firecracker.NewCreateBalloonHandler(2, true, 1))
	}
	started, err := startGuest(ctx, "balloon", func(*firecracker.Config) {}, withBalloon)
	if err != nil {
		return err
	}
	defer started.abandon()
	reaches := func(mib int64) error {
		return await(fmt.Sprintf("a balloon of %d MiB", mib), func() (bool, error) {
			stats, err := started.GetBalloonStats(ctx)
			return err == nil && *stats.ActualMib == mib && *stats.TargetMib == mib, err
		})
	}
	if err := reaches(2); err != nil {
		return err
	}
	if err := started.UpdateBalloon(ctx, 8); err != nil {
		return err
	}
	if err := reaches(8); err != nil {
		return err
	}
	if err := started.UpdateBalloonStats(ctx, 3); err != nil {
		return err
	}
	found, err := started.GetBalloonConfig(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("balloon: mib=%d deflates=%t interval=%d\n",
		*found.AmountMib, *found.DeflateOnOom, found.StatsPollingIntervals)
	return started.end(ctx)
}

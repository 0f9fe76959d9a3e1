// Package events prints what a Kafka client does, one line for each event, and ends the program when its standard input
// closes. The test closes the standard input; it also closes when the test dies.
//
//	sent PARTITION OFFSET KEY VALUE              acknowledged
//	read TIME PARTITION OFFSET KEY VALUE HEADER  read; TIME in nanoseconds since 1970
//	committed TIME PARTITION OFFSET              the group's next offset, acknowledged
package events

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// Header is the name of the header that each record of a test has; its value is the record's number.
const Header = "number"

// End is the value of the last record of a partition, which the test writes.
const End = "end"

var printing sync.Mutex

// UntilStdinCloses returns a context that is cancelled when the standard input closes.
func UntilStdinCloses() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx
}

// Print writes one line at once: a killed process loses none that it printed.
func Print(words ...any) {
	printing.Lock()
	defer printing.Unlock()
	_, err := os.Stdout.WriteString(fmt.Sprintln(words...))
	Must(err)
}

// Sent prints an acknowledged record.
func Sent(partition int32, offset int64, key, value []byte) {
	Print("sent", partition, offset, string(key), string(value))
}

// Read prints a record that the program read.
func Read(partition int32, offset int64, key, value []byte, header string) {
	Print("read", time.Now().UnixNano(), partition, offset, string(key), string(value), header)
}

// Committed prints an offset that the coordinator acknowledged.
func Committed(partition int32, offset int64) {
	Print("committed", time.Now().UnixNano(), partition, offset)
}

// Record returns key, value and header of record number.
func Record(number int) (key, value, header []byte) {
	return fmt.Appendf(nil, "k%d", number%60), fmt.Appendf(nil, "v%d", number), fmt.Appendf(nil, "%d", number)
}

// Copied returns the value that a copy of a record has.
func Copied(value []byte) []byte {
	return []byte(strings.ToUpper(string(value)))
}

// Each calls produce with the numbers of count records; with count 0, with 500 numbers a second until ctx ends.
func Each(ctx context.Context, count int, produce func(number int)) {
	if count > 0 {
		for number := range count {
			produce(number)
		}
		return
	}
	pace := time.NewTicker(2 * time.Millisecond)
	defer pace.Stop()
	for number := 0; ; number++ {
		select {
		case <-ctx.Done():
			return
		case <-pace.C:
			produce(number)
		}
	}
}

// Must ends the program with an error that the program cannot go on after.
func Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "failed:", err)
		os.Exit(1)
	}
}

// Command franz is a Kafka client with franz-go. The package events says what it prints.
//
//	franz produce BOOTSTRAP TOPIC COUNT                  (0: until the standard input closes)
//	franz group BOOTSTRAP TOPIC GROUP classic|consumer   a member, until the standard input closes
//	franz copy BOOTSTRAP SOURCE TARGET GROUP ID COUNT classic|consumer
//	                                                     in transactions; the first one is aborted
//	franz read BOOTSTRAP TOPIC ISOLATION PARTITIONS      until the last record of each partition
package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"headrace/gatewayclients/events"
)

func main() {
	command, servers, topic, rest := os.Args[1], kgo.SeedBrokers(strings.Split(os.Args[2], ",")...), os.Args[3], os.Args[4:]
	switch command {
	case "produce":
		produce(servers, topic, number(rest[0]))
	case "group":
		group(servers, topic, rest[0], rest[1])
	case "copy":
		copyInTransactions(servers, topic, rest[0], rest[1], rest[2], number(rest[3]), rest[4])
	case "read":
		read(servers, topic, rest[0], number(rest[1]))
	default:
		events.Must(errors.New("no such command: " + command))
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	events.Must(err)
	return value
}

var logger = kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelInfo, nil))

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(append(options, logger)...)
	events.Must(err)
	return made
}

func header(record *kgo.Record) string {
	for _, each := range record.Headers {
		if each.Key == events.Header {
			return string(each.Value)
		}
	}
	return "-"
}

func printRead(record *kgo.Record) {
	events.Read(record.Partition, record.Offset, record.Key, record.Value, header(record))
}

// isRetried says whether err is kgo's notice that it joins the group again, because of an error that passes.
func isRetried(err error) bool {
	var session *kgo.ErrGroupSession
	return errors.As(err, &session) && (kerr.IsRetriable(session.Err) || kgo.IsRetryableBrokerErr(session.Err))
}

// polled returns the records of a poll, none after ctx ended.
func polled(ctx context.Context, fetches kgo.Fetches) []*kgo.Record {
	for _, each := range fetches.Errors() {
		if ctx.Err() == nil && !isRetried(each.Err) {
			events.Must(each.Err)
		}
	}
	return fetches.Records()
}

// produce is idempotent with acks=all, franz-go's defaults.
func produce(servers kgo.Opt, topic string, count int) {
	producer := client(servers, kgo.DefaultProduceTopic(topic))
	defer producer.Close()
	events.Each(events.UntilStdinCloses(), count, func(number int) {
		key, value, header := events.Record(number)
		record := &kgo.Record{Key: key, Value: value, Headers: []kgo.RecordHeader{{Key: events.Header, Value: header}}}
		producer.Produce(context.Background(), record, func(sent *kgo.Record, err error) {
			events.Must(err)
			events.Sent(sent.Partition, sent.Offset, sent.Key, sent.Value)
		})
	})
	events.Must(producer.Flush(context.Background()))
}

// balancers returns the options of a group's protocol.
func balancers(protocol string) []kgo.Opt {
	if protocol == "consumer" {
		return []kgo.Opt{kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer())}
	}
	return nil
}

func group(servers kgo.Opt, topic, name, protocol string) {
	ctx := events.UntilStdinCloses()
	options := []kgo.Opt{
		servers, kgo.ConsumerGroup(name), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.SessionTimeout(6 * time.Second),
		kgo.HeartbeatInterval(500 * time.Millisecond),
	}
	member := client(append(options, balancers(protocol)...)...)
	defer member.CloseAllowingRebalance()
	for ctx.Err() == nil {
		records := polled(ctx, member.PollFetches(ctx))
		next := map[int32]int64{}
		for _, record := range records {
			printRead(record)
			next[record.Partition] = record.Offset + 1
		}
		if err := member.CommitRecords(context.Background(), records...); err != nil {
			events.Print("refused", err) // another member reads these records again
		} else {
			for partition, offset := range next {
				events.Committed(partition, offset)
			}
		}
		member.AllowRebalance()
	}
}

func copyInTransactions(servers kgo.Opt, source, target, name, id string, left int, protocol string) {
	ctx := context.Background()
	session, err := kgo.NewGroupTransactSession(append(
		balancers(protocol), servers, kgo.ConsumerGroup(name), kgo.ConsumeTopics(source), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.DefaultProduceTopic(target), kgo.TransactionalID(id), logger,
	)...)
	events.Must(err)
	defer session.Close()
	for try := kgo.TryAbort; left > 0; {
		records := polled(ctx, session.PollFetches(ctx))
		if len(records) == 0 {
			continue
		}
		events.Must(session.Begin())
		for _, record := range records {
			copied := &kgo.Record{Key: record.Key, Value: events.Copied(record.Value), Headers: record.Headers}
			session.Produce(ctx, copied, func(_ *kgo.Record, err error) { events.Must(err) })
		}
		events.Must(session.Client().Flush(ctx)) // the records of the aborted transaction are in the log too
		committed, err := session.End(ctx, try)
		events.Must(err)
		if committed {
			left -= len(records)
			events.Print("copied", len(records))
		} else {
			events.Print("aborted", len(records))
		}
		try = kgo.TryCommit
	}
}

func read(servers kgo.Opt, topic, isolation string, partitions int) {
	ctx := context.Background()
	level := kgo.ReadUncommitted()
	if isolation == "read_committed" {
		level = kgo.ReadCommitted()
	}
	reader := client(servers, kgo.ConsumeTopics(topic), kgo.FetchIsolationLevel(level),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	defer reader.Close()
	for partitions > 0 {
		for _, record := range polled(ctx, reader.PollFetches(ctx)) {
			if string(record.Value) == events.End {
				partitions--
			} else {
				printRead(record)
			}
		}
	}
}

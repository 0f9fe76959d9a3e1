// Command sarama is a Kafka client with sarama. The package events says what it prints; a member of a group prints no
// commits, because sarama's Commit returns no result.
//
//	sarama produce BOOTSTRAP TOPIC COUNT                  (0: until the standard input closes)
//	sarama group BOOTSTRAP TOPIC GROUP classic            a member, until the standard input closes
//	sarama copy BOOTSTRAP SOURCE TARGET GROUP ID COUNT classic
//	                                                      in transactions; the first one is aborted
//	sarama read BOOTSTRAP TOPIC ISOLATION PARTITIONS      until the last record of each partition
package main

import (
	"context"
	"errors"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"headrace/gatewayclients/events"
)

func main() {
	sarama.Logger = log.New(os.Stderr, "", log.LstdFlags)
	command, servers, topic, rest := os.Args[1], strings.Split(os.Args[2], ","), os.Args[3], os.Args[4:]
	switch command {
	case "produce":
		produce(servers, topic, number(rest[0]))
	case "group":
		group(servers, topic, rest[0])
	case "copy":
		copyInTransactions(servers, topic, rest[0], rest[1], rest[2], number(rest[3]))
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

// configuration is that of an idempotent producer with acks=all, and of a consumer that begins at the start.
func configuration() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V4_3_0_0
	config.Net.MaxOpenRequests = 1
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewMurmur2Partitioner
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Return.Errors = true
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	return config
}

func header(headers []*sarama.RecordHeader) string {
	for _, each := range headers {
		if string(each.Key) == events.Header {
			return string(each.Value)
		}
	}
	return "-"
}

func printRead(message *sarama.ConsumerMessage) {
	events.Read(message.Partition, message.Offset, message.Key, message.Value, header(message.Headers))
}

func produce(servers []string, topic string, count int) {
	producer, err := sarama.NewAsyncProducer(servers, configuration())
	events.Must(err)
	var done, pending sync.WaitGroup
	done.Go(func() {
		for sent := range producer.Successes() {
			key, _ := sent.Key.Encode()
			value, _ := sent.Value.Encode()
			events.Sent(sent.Partition, sent.Offset, key, value)
			pending.Done()
		}
	})
	done.Go(func() {
		for failed := range producer.Errors() {
			events.Must(failed)
		}
	})
	events.Each(events.UntilStdinCloses(), count, func(number int) {
		key, value, header := events.Record(number)
		pending.Add(1)
		producer.Input() <- &sarama.ProducerMessage{
			Topic: topic, Key: sarama.ByteEncoder(key), Value: sarama.ByteEncoder(value),
			Headers: []sarama.RecordHeader{{Key: []byte(events.Header), Value: header}},
		}
	})
	pending.Wait() // a producer that is closing repeats no batch
	producer.AsyncClose()
	done.Wait()
}

// handler calls consume for each partition of the member.
type handler struct {
	consume func(sarama.ConsumerGroupSession, sarama.ConsumerGroupClaim)
}

func (handler) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (h handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	h.consume(session, claim)
	return nil
}

// joined is a member of a group until ctx ends.
func joined(ctx context.Context, servers []string, topic, name string, config *sarama.Config, with handler) {
	member, err := sarama.NewConsumerGroup(servers, name, config)
	events.Must(err)
	go func() {
		for err := range member.Errors() {
			events.Print("refused", err) // another member reads these records again
		}
	}()
	for ctx.Err() == nil {
		events.Must(member.Consume(ctx, []string{topic}, with))
	}
	events.Must(member.Close())
}

func group(servers []string, topic, name string) {
	consume := func(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) {
		for message := range claim.Messages() {
			printRead(message)
			session.MarkMessage(message, "")
			if len(claim.Messages()) == 0 || message.Offset%50 == 0 {
				session.Commit()
			}
		}
	}
	joined(events.UntilStdinCloses(), servers, topic, name, configuration(), handler{consume})
}

func copyInTransactions(servers []string, source, target, name, id string, left int) {
	config := configuration()
	config.Producer.Transaction.ID = id
	config.Consumer.IsolationLevel = sarama.ReadCommitted
	producer, err := sarama.NewSyncProducer(servers, config)
	events.Must(err)
	ctx, cancel := context.WithCancel(context.Background())
	var one sync.Mutex // one transaction at a time
	aborted := false
	// transaction copies messages of one partition; it returns false after it aborted.
	transaction := func(messages []*sarama.ConsumerMessage) bool {
		one.Lock()
		defer one.Unlock()
		events.Must(producer.BeginTxn())
		var copies []*sarama.ProducerMessage
		for _, each := range messages {
			copies = append(copies, &sarama.ProducerMessage{
				Topic: target, Key: sarama.ByteEncoder(each.Key), Value: sarama.ByteEncoder(events.Copied(each.Value)),
				Headers: []sarama.RecordHeader{{Key: []byte(events.Header), Value: []byte(header(each.Headers))}},
			})
		}
		events.Must(producer.SendMessages(copies))
		events.Must(producer.AddMessageToTxn(messages[len(messages)-1], name, nil))
		if !aborted {
			aborted = true
			events.Must(producer.AbortTxn())
			events.Print("aborted", len(messages))
			return false
		}
		events.Must(producer.CommitTxn())
		events.Print("copied", len(messages))
		if left -= len(messages); left <= 0 {
			cancel()
		}
		return true
	}
	consume := func(_ sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) {
		for message := range claim.Messages() {
			messages := []*sarama.ConsumerMessage{message}
			for len(claim.Messages()) > 0 {
				messages = append(messages, <-claim.Messages())
			}
			if !transaction(messages) {
				return // ends the session; the next one begins at the committed offsets
			}
		}
	}
	joined(ctx, servers, source, name, config, handler{consume})
	events.Must(producer.Close())
}

func read(servers []string, topic, isolation string, partitions int) {
	config := configuration()
	if isolation == "read_committed" {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	reader, err := sarama.NewConsumer(servers, config)
	events.Must(err)
	var done sync.WaitGroup
	for partition := range partitions {
		messages, err := reader.ConsumePartition(topic, int32(partition), sarama.OffsetOldest)
		events.Must(err)
		done.Go(func() {
			for message := range messages.Messages() {
				if string(message.Value) == events.End {
					return
				}
				printRead(message)
			}
		})
	}
	done.Wait()
}

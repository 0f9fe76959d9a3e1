// Command secured writes a record with franz-go and reads it again, by TLS and a login.
//
//	secured BOOTSTRAP CA TOPIC VALUE PLAIN|SCRAM-SHA-256|SCRAM-SHA-512 USER PASSWORD
//	secured BOOTSTRAP CA TOPIC VALUE OAUTHBEARER TOKEN
//	secured BOOTSTRAP CA TOPIC VALUE CERTIFICATE FILE      the key and its certificate
//
// It prints the value that it has read. An error goes to standard error, with exit code 1.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func main() {
	servers, ca, topic, value := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	config := &tls.Config{RootCAs: pool(ca), MinVersion: tls.VersionTLS12}
	options := []kgo.Opt{kgo.SeedBrokers(servers), kgo.DefaultProduceTopic(topic), kgo.RecordRetries(3)}
	options = append(options, login(config, os.Args[5], os.Args[6:])...)
	producer, err := kgo.NewClient(append(options, kgo.DialTLSConfig(config))...)
	must(err)
	defer producer.Close()
	must(producer.Ping(ctx)) // its error is the broker's; a produce would only time out
	sent := producer.ProduceSync(ctx, kgo.StringRecord(value))
	must(sent.FirstErr())
	from := map[string]map[int32]kgo.Offset{topic: {sent[0].Record.Partition: kgo.NewOffset().At(sent[0].Record.Offset)}}
	reader, err := kgo.NewClient(append(options, kgo.DialTLSConfig(config), kgo.ConsumePartitions(from))...)
	must(err)
	defer reader.Close()
	fetched := reader.PollFetches(ctx)
	must(fetched.Err())
	fmt.Println(string(fetched.Records()[0].Value))
}

func login(config *tls.Config, mechanism string, words []string) []kgo.Opt {
	switch mechanism {
	case "PLAIN":
		return []kgo.Opt{kgo.SASL(plain.Auth{User: words[0], Pass: words[1]}.AsMechanism())}
	case "SCRAM-SHA-256":
		return []kgo.Opt{kgo.SASL(scram.Auth{User: words[0], Pass: words[1]}.AsSha256Mechanism())}
	case "SCRAM-SHA-512":
		return []kgo.Opt{kgo.SASL(scram.Auth{User: words[0], Pass: words[1]}.AsSha512Mechanism())}
	case "OAUTHBEARER":
		return []kgo.Opt{kgo.SASL(oauth.Auth{Token: words[0]}.AsMechanism())}
	case "CERTIFICATE":
		own, err := tls.LoadX509KeyPair(words[0], words[0])
		must(err)
		config.Certificates = []tls.Certificate{own}
		return nil
	}
	must(fmt.Errorf("no such mechanism: %s", mechanism))
	return nil
}

func pool(path string) *x509.CertPool {
	text, err := os.ReadFile(path)
	must(err)
	found := x509.NewCertPool()
	found.AppendCertsFromPEM(text)
	return found
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

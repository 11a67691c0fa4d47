// redlatch-porcupine judges histories of locks with Porcupine, a checker of linearizability.
//
//	redlatch-porcupine LEASE RELIED_ON SECONDS
//
// LEASE and RELIED_ON are nanoseconds: how long a lock lasts that nobody renews, and for how long of that a client
// relies on it. Porcupine gives up on a part of a history after SECONDS.
//
// Histories come by standard input, one name after the other:
//
//	n NAME LIMIT MARGIN                   a lock has one permit; ns for which one is kept beyond its lease
//	d CALLED ANSWERED                     somebody deletes the key
//	h WHO CALLED ANSWERED STATUS TRIED TOKEN COUNTED TOLD SURE KEPT UNTIL FREED DONE RELEASE WATCHED LOST PERMITS
//	c NAME KIND NUMBER                    a plain semaphore or a latch (KIND), and its number at first
//	u WHO CALLED ANSWERED OP WANTED STATUS TRIED TOLD
//	.                                     the end of this name
//
// conformance/drivers/README.md says what the words of a hold mean. TOKEN and RELEASE are `-` when there is none, WATCHED is 1
// if the program lived to write all that it was told, and LOST are the times at which the holder was told of a loss,
// separated by commas, or `-`; PERMITS are those that it wants. OP is a word of conformance/README.md, WANTED its permits or number, and
// TOLD the value of its answer, or `-`; a `look` asks for the number, of the server itself when all is over if WHO is `server`.
// Each name is answered by one line of JSON on standard output.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := serve(os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "redlatch-porcupine:", err)
		os.Exit(2)
	}
}

func serve(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 3 {
		return fmt.Errorf("wanted are LEASE RELIED_ON SECONDS, given are %d words", len(args))
	}
	numbers := words{list: args}
	r := rules{lease: numbers.integer(), reliedOn: numbers.integer()}
	r.limit = time.Duration(numbers.integer()) * time.Second
	if numbers.err != nil {
		return numbers.err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 1<<16), 1<<26)
	answers := json.NewEncoder(out)
	name, past := "", history{}
	var counted *counter
	for number := 1; lines.Scan(); number++ {
		kind, rest, _ := strings.Cut(lines.Text(), " ")
		line := words{list: strings.Fields(rest)}
		switch kind {
		case "n":
			name, past, counted = line.next(), history{limit: line.integer(), margin: line.integer()}, nil
		case "c":
			name, counted = line.next(), &counter{latch: line.next() == "latch", number: line.integer()}
		case "u":
			if counted == nil {
				return fmt.Errorf("line %d: it belongs to no counter", number)
			}
			counted.uses = append(counted.uses, line.use())
		case "d":
			past.deletions = append(past.deletions, deletion{line.integer(), line.integer()})
		case "h":
			past.holds = append(past.holds, line.hold())
		case ".":
			judge := past.judge
			if counted != nil {
				judge = counted.judge
			}
			if err := answers.Encode(judge(name, r)); err != nil {
				return err
			}
			past, counted = history{}, nil
		default:
			return fmt.Errorf("line %d: no such kind of line: %q", number, kind)
		}
		if line.err != nil {
			return fmt.Errorf("line %d: %w", number, line.err)
		}
		if len(line.list) > 0 {
			return fmt.Errorf("line %d: %d words too many", number, len(line.list))
		}
	}
	return lines.Err()
}

// words are read one after the other; the first that is missing or no number is the error.
type words struct {
	list []string
	err  error
}

func (w *words) next() string {
	if len(w.list) == 0 {
		if w.err == nil {
			w.err = fmt.Errorf("a word is missing")
		}
		return ""
	}
	word := w.list[0]
	w.list = w.list[1:]
	return word
}

func (w *words) integer() int64 {
	word := w.next()
	number, err := strconv.ParseInt(word, 10, 64)
	if err != nil && w.err == nil {
		w.err = fmt.Errorf("%q is no number", word)
	}
	return number
}

func (w *words) flag() bool { return w.integer() != 0 }

// optional is a number, or none for `-`.
func (w *words) optional() (number int64, is bool) {
	if len(w.list) > 0 && w.list[0] != "-" {
		return w.integer(), true
	}
	w.next()
	return none, false
}

func (w *words) use() use {
	u := use{who: w.next(), called: w.integer(), answered: w.integer(), op: w.next(), wanted: w.integer(), status: w.next(), tried: w.flag()}
	u.told, u.heard = w.optional()
	return u
}

func (w *words) hold() hold {
	h := hold{who: w.next(), called: w.integer(), answered: w.integer(), status: w.next(), tried: w.flag()}
	h.token, _ = w.optional()
	h.counted, h.told, h.sure, h.kept, h.until = w.integer(), w.integer(), w.integer(), w.flag(), w.integer()
	h.freed, h.done, h.release, h.watched = w.integer(), w.integer(), w.next(), w.flag()
	if lost := w.next(); lost != "-" && w.err == nil {
		for _, at := range strings.Split(lost, ",") {
			one := words{list: []string{at}}
			h.lost = append(h.lost, one.integer())
			w.err = one.err
		}
	}
	h.permits = w.integer()
	return h
}

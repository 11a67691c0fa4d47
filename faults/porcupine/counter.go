package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// use is a call about a plain semaphore or a latch. Nobody has these, so it is the number alone that is judged.
type use struct {
	who              string
	called, answered int64
	op               string
	// The permits, or by how much is counted down.
	wanted int64
	status string
	// Whether it was to wait for nothing.
	tried bool
	// The value that the caller was told, if there was one.
	told  int64
	heard bool
}

// server is the one who looks at the number when all is over.
const server = "server"

// counter is what happened to one plain semaphore or latch.
type counter struct {
	latch bool
	// The number at first; a latch without a count, and a semaphore without permits, has none.
	number int64
	uses   []use
}

// act is what an operation does to the number.
type act uint8

const (
	change  act = iota // adds to it, as it is
	take               // takes permits from it, if it has so many
	refuse             // somebody is refused permits
	empty              // takes all permits
	down               // counts down, to 0 at most
	enter              // somebody is let in at an open latch
	keepOut            // somebody is not let in at a shut one
	read               // tells it
	begin              // gives it its first value, and says so
	begun              // finds that it has one
	begins             // gives it its first value, or finds one: the caller does not know
)

// deed is the input of an operation: its number in the history tells apart those that are alike.
type deed struct {
	use int
	// Its number among the operations.
	at     int
	act    act
	number int64
	// For what empties it: whether the caller knows how much that was.
	heard bool
	// Permits that are given back unnoticed may have been missing: it shows how much there was at least.
	excused bool
}

// tracked operations are told apart by a state. A history of more is searched without short cuts.
const tracked = 512

// set is one of operations.
type set [tracked / 64]uint64

func (s set) with(at int) set {
	s[at/64] |= 1 << (at % 64)
	return s
}

func (s set) has(at int) bool { return s[at/64]&(1<<(at%64)) != 0 }

// hasAll says whether the other set is a part of it.
func (s set) hasAll(other set) bool {
	for i := range s {
		if other[i]&^s[i] != 0 {
			return false
		}
	}
	return true
}

// tally is the number, if there is one, and which operations made it.
type tally struct {
	number int64
	there  bool
	done   set
}

// search knows short cuts. Each leaves out orders that are right only if another one is, which is not left out.
type search struct {
	*counter
	ops []porcupine.Operation
	// For each operation those that do the same, and neither begin nor end later: they come before it.
	before []set
}

func (c *counter) search(ops []porcupine.Operation) *search {
	s := &search{counter: c, ops: ops}
	if len(ops) > tracked {
		return s
	}
	s.before = make([]set, len(ops))
	for i := range ops {
		one := ops[i].Input.(deed)
		if one.act != change && one.act != take && one.act != down {
			continue
		}
		for j := range ops {
			other := ops[j].Input.(deed)
			isAlike := i != j && one.act == other.act && one.number == other.number
			isFirst := ops[j].Call < ops[i].Call || ops[j].Call == ops[i].Call && j < i
			if isAlike && isFirst && ops[j].Return <= ops[i].Return {
				s.before[i] = s.before[i].with(j)
			}
		}
	}
	return s
}

// step is the counter without orders that need no search.
func (s *search) step(now tally, d deed) (bool, tally) {
	ok, next := s.count(now, d)
	if !ok || s.before == nil {
		return ok, next
	}
	next.done = now.done.with(d.at)
	if d.act.changes() && (!now.done.hasAll(s.before[d.at]) || s.canTell(now)) {
		return false, now
	}
	return true, next
}

// canTell says whether an answer that changes nothing is right now: then its operation comes next.
func (s *search) canTell(now tally) bool {
	end := int64(math.MaxInt64)
	for i := range s.ops {
		if !now.done.has(i) {
			end = min(end, s.ops[i].Return)
		}
	}
	for i := range s.ops {
		if d := s.ops[i].Input.(deed); !d.act.changes() && !now.done.has(i) && s.ops[i].Call <= end {
			if ok, _ := s.count(now, d); ok {
				return true
			}
		}
	}
	return false
}

func (a act) changes() bool {
	return a != refuse && a != enter && a != keepOut && a != read && a != begun
}

// count is the counter: whether the operation may have this outcome at this number, and the number that follows.
func (c *counter) count(s tally, d deed) (bool, tally) {
	switch d.act {
	case change:
		return true, tally{number: s.number + d.number, there: true}
	case take:
		return s.number >= d.number, tally{number: s.number - d.number, there: s.there}
	case refuse:
		return d.excused || s.number < d.number, s
	case empty:
		if !d.heard {
			return true, tally{there: s.there}
		}
		if d.excused {
			return s.number >= d.number, tally{number: s.number - d.number, there: s.there}
		}
		return s.number == d.number, tally{there: s.there}
	case down:
		// An open latch has no key.
		left := max(0, s.number-d.number)
		return true, tally{number: left, there: left > 0}
	case enter:
		return s.number == 0, s
	case keepOut:
		return s.number > 0, s
	case read:
		return s.number == d.number || d.excused && s.number >= d.number, s
	case begin:
		return !s.there, tally{number: d.number, there: !c.latch || d.number > 0}
	case begun:
		return s.there, s
	case begins:
		if s.there {
			return true, s
		}
		return true, tally{number: d.number, there: !c.latch || d.number > 0}
	}
	panic(fmt.Sprintf("no such act: %d", d.act))
}

func (c *counter) first() tally { return tally{number: c.number, there: c.number > 0} }

func (s *search) model() porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return s.first() },
		Step: func(now, input, _ interface{}) (bool, interface{}) {
			ok, next := s.step(now.(tally), input.(deed))
			return ok, next
		},
		Hash: func(s interface{}) uint64 { return uint64(s.(tally).number) * 1099511628211 },
	}
}

// operations are the calls that say or do something, for Porcupine.
//
// A release and a count are done as soon as the server answers, though their callers may be told that it is
// unavailable: before the server is looked at in the end. Any other change of which that is told is done at any
// time, or never: after that look, which is the same.
func (c *counter) operations() (ops []porcupine.Operation) {
	const never = math.MaxInt64
	settled := int64(never)
	for i := range c.uses {
		if u := &c.uses[i]; u.who == server {
			settled = min(settled, u.called-1)
		}
	}
	first := c.unnoticed()
	for i := range c.uses {
		u := &c.uses[i]
		d := deed{use: i, number: u.wanted, heard: u.heard, excused: u.who != server && u.answered >= first}
		from, to, isSure := u.called, u.answered, u.status == "ok"
		switch u.op {
		case "acquire":
			switch {
			case isSure:
				d.act = take
			case u.tried && u.status == "timeout":
				d.act = refuse
				d.number, from = c.behind(u)
			default:
				continue
			}
		case "release":
			d.act = change
			if !isSure {
				to = settled
			}
			if c.passesOn(u) {
				// Some of them go to a caller who waits there at once, and the others to the server after that.
				d.number = 1
				for rest := u.wanted - 1; rest > 0; rest-- {
					d.at = len(ops)
					ops = append(ops, porcupine.Operation{Input: d, Call: from, Return: to})
				}
			}
		case "add":
			d.act = change
			if !isSure {
				to = never
			}
		case "drain":
			d.act, d.number = empty, u.told
			if !isSure {
				d.heard, to = false, never
			}
		case "down":
			d.act = down
			if !isSure {
				to = settled
			}
		case "wait":
			switch {
			case isSure:
				d.act = enter
			case u.tried && u.status == "timeout":
				d.act = keepOut
			default:
				continue
			}
		case "look":
			if !isSure {
				continue
			}
			d.act, d.number = read, u.told
		case "set":
			switch {
			case !isSure:
				d.act, to = begins, never
			case u.told != 0:
				d.act = begin
			default:
				d.act = begun
			}
		}
		d.at = len(ops)
		ops = append(ops, porcupine.Operation{Input: d, Call: from, Return: to})
	}
	return ops
}

// unnoticed is when the first acquisition was called that may take permits for a while and give them back, because its
// caller does not hear of them.
func (c *counter) unnoticed() int64 {
	first := int64(math.MaxInt64)
	for i := range c.uses {
		u := &c.uses[i]
		if u.op == "acquire" && u.status != "ok" && u.status != "timeout" {
			first = min(first, u.called)
		}
	}
	return first
}

// behind tells why a try is refused, and since when that is known: the number is less than it wants, or than another
// caller of its client wants, who came first and waits.
func (c *counter) behind(u *use) (wanted, from int64) {
	wanted, from = u.wanted, u.called
	for i := range c.uses {
		other := &c.uses[i]
		if other.op == "acquire" && !other.tried && other.who == u.who && other.called <= u.answered && other.answered >= u.called {
			wanted, from = max(wanted, other.wanted), min(from, other.called)
		}
	}
	return wanted, from
}

// passesOn tells whether a release may serve other callers of its client, of which the server hears nothing.
func (c *counter) passesOn(u *use) bool {
	return slices.ContainsFunc(c.uses, func(other use) bool {
		return other.op == "acquire" && other.who == u.who && other.called <= u.answered && other.answered >= u.called
	})
}

func (c *counter) kind() string {
	if c.latch {
		return "latch"
	}
	return "plain semaphore"
}

// judge has Porcupine look for an order of all operations that the counter allows. Histories of counters are short.
func (c *counter) judge(name string, r rules) verdict {
	ops := c.operations()
	v := verdict{Operations: len(ops), Parts: 1, Largest: len(ops), Messages: []string{}}
	strict, excused := slices.Clone(ops), 0
	for i := range ops {
		d := ops[i].Input.(deed)
		if d.act == refuse || d.act == keepOut {
			v.Refusals++
		}
		if d.excused && (d.act == refuse || d.act == empty || d.act == read) {
			excused++
		}
		d.excused = false
		strict[i].Input = d
	}
	result := porcupine.CheckOperationsTimeout(c.search(strict).model(), strict, r.limit)
	if result != porcupine.Ok && excused > 0 {
		v.Excused = excused
		strict = ops
		result = porcupine.CheckOperationsTimeout(c.search(ops).model(), ops, r.limit)
	}
	switch result {
	case porcupine.Ok:
	case porcupine.Unknown:
		v.Undecided++
		v.Messages = append(v.Messages, fmt.Sprintf("%s: no decision within %s for %d operations", name, r.limit, len(ops)))
	default:
		v.Violations++
		v.Messages = append(v.Messages, fmt.Sprintf("%s: no order of a %s for %d operations%s", name, c.kind(), len(ops), c.stuck(strict, r.limit)))
	}
	return v
}

// stuck says where the longest order that Porcupine found ends: what would have to come next, and cannot.
func (c *counter) stuck(ops []porcupine.Operation, limit time.Duration) string {
	_, info := porcupine.CheckOperationsVerbose(c.search(ops).model(), ops, limit)
	var longest []porcupine.Operation
	for _, order := range info.PartialLinearizationsOperations()[0] {
		if len(order) > len(longest) {
			longest = order
		}
	}
	now, placed := c.first(), map[int]bool{}
	for _, op := range longest {
		_, now = c.count(now, op.Input.(deed))
		placed[op.Input.(deed).at] = true
	}
	var next *porcupine.Operation
	for i := range ops {
		if !placed[ops[i].Input.(deed).at] && (next == nil || ops[i].Return < next.Return) {
			next = &ops[i]
		}
	}
	if next == nil {
		return ""
	}
	u := &c.uses[next.Input.(deed).use]
	told := ""
	if u.heard {
		told = fmt.Sprintf(", told %d", u.told)
	}
	return fmt.Sprintf(": %s %d of %s (%s%s) from %d to %d cannot follow at %d", u.op, u.wanted, u.who, u.status, told, next.Call, next.Return, now.number)
}

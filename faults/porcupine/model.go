package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// kind says what an operation asks of the lock.
type kind uint8

const (
	acquire kind = iota // a caller acquires, and is granted the lock
	try                 // a caller tries once, and is refused
	release             // a hold is released for good, and that succeeds
	letGo               // a release is called which does not succeed
	notHeld             // the answer of that release: the lock was not held any more
	look                // the client calls a hold held
	expire              // the lease of a hold that nobody released has run out
	tell                // the holder is told that it lost the lock
	finish              // everything has been said about a hold that ended without a successful release
	remove              // somebody deletes the key
)

// call is the input of an operation. It names the hold by its number in the history.
type call struct {
	kind kind
	hold int
	at   int64 // when the operation begins
	// Levels that the caller made and, for a release, those that its client counted.
	levels int64
	// The fencing token, or none.
	token int64
	// For a removal: until when a client may call the lock held that it took away.
	until int64
	// For a finish: how often the holder may have been told of the loss.
	least, most uint8
	// For a refusal: an operation with an unknown outcome may have owned the lock.
	excused bool
	// For an acquisition: when it was answered.
	answered int64
	// For an acquisition and a refusal: how many permits it wants. A mutex has one.
	permits int64
}

const none = -1

// phase says what became of a hold that owns the lock no more, and of which the client speaks still.
type phase uint8

const (
	deleted phase = iota // somebody deleted the key
	leaving              // its release is under way: it excludes nobody, and may be on the server
	expired              // its lease has run out
)

// past is a hold that excludes nobody any more.
type past struct {
	hold   int
	phase  phase
	told   uint8
	levels int64
	until  int64
}

// owner is a hold that has permits.
type owner struct {
	hold   int
	levels int64
	// When its acquisition was answered.
	answered int64
	permits  int64
}

// state is a semaphore, or a lock: that is a semaphore with one permit.
type state struct {
	// Permits that nobody owns.
	free int64
	// The highest token so far.
	token int64
	// In the order of their numbers. States share both: nobody writes to one that exists.
	owners []owner
	past   []past
}

func free(limit int64) state { return state{free: limit, token: none} }

func (s state) owner(hold int) (int, bool) {
	return slices.BinarySearchFunc(s.owners, hold, func(o owner, hold int) int { return o.hold - hold })
}

// enter makes the hold an owner.
func (s state) enter(o owner) state {
	at, _ := s.owner(o.hold)
	s.owners = slices.Insert(slices.Clone(s.owners), at, o)
	s.free -= o.permits
	return s
}

// giveBack takes the permits from an owner.
func (s state) giveBack(at int) state {
	s.free += s.owners[at].permits
	s.owners = slices.Delete(slices.Clone(s.owners), at, at+1)
	return s
}

func (s state) find(hold int) (int, bool) {
	return slices.BinarySearchFunc(s.past, hold, func(p past, hold int) int { return p.hold - hold })
}

func (s state) with(p past) state {
	at, found := s.find(p.hold)
	s.past = slices.Clone(s.past)
	if found {
		s.past[at] = p
	} else {
		s.past = slices.Insert(s.past, at, p)
	}
	return s
}

func (s state) without(at int) state {
	s.past = slices.Delete(slices.Clone(s.past), at, at+1)
	return s
}

// leave makes the owner a hold of the past.
func (s state) leave(at int, phase phase, until int64) state {
	o := s.owners[at]
	return s.giveBack(at).with(past{hold: o.hold, phase: phase, levels: o.levels, until: until})
}

// step is the semaphore: whether the operation may have this outcome in this state, and the state that follows.
func step(s state, c call) (bool, state) {
	if c.kind == acquire {
		if s.free < c.permits || c.token != none && c.token <= s.token {
			return false, s
		}
		if c.token != none {
			s.token = c.token
		}
		return true, s.enter(owner{c.hold, c.levels, c.answered, c.permits})
	}
	if c.kind == try {
		return s.free < c.permits, s
	}
	if c.kind == remove {
		return true, s.removed(c)
	}
	own, owns := s.owner(c.hold)
	at, found := s.find(c.hold)
	var p past
	if found {
		p = s.past[at]
	}
	switch c.kind {
	case release:
		if owns {
			return c.levels == s.owners[own].levels, s.giveBack(own)
		}
		// A key that somebody else deleted cannot be told from one that the first copy of a release deleted.
		if found && p.phase == deleted && p.told == 0 && (p.levels == none || p.levels == c.levels) {
			return true, s.without(at)
		}
		return false, s
	case letGo:
		if owns {
			return true, s.leave(own, leaving, 0)
		}
		return found, s
	case notHeld:
		return found && p.phase != leaving, s
	case look:
		return owns || found && p.phase == deleted && p.told == 0 && c.at <= p.until, s
	case expire:
		if owns {
			return true, s.leave(own, expired, 0)
		}
		if found && p.phase == leaving {
			p.phase = expired
			return true, s.with(p)
		}
		return found, s
	case tell:
		if !found || p.phase == leaving || p.told > 0 {
			return false, s
		}
		p.told++
		return true, s.with(p)
	case finish:
		if !found || p.told < c.least || p.told > c.most {
			return false, s
		}
		return true, s.without(at)
	}
	panic(fmt.Sprintf("no such operation: %d", c.kind))
}

// removed takes the key away, from its owners and from those whose release is under way.
func (s state) removed(c call) state {
	for _, p := range s.past {
		if p.phase == leaving {
			p.phase, p.until = deleted, c.until
			s = s.with(p)
		}
	}
	for len(s.owners) > 0 {
		o := s.owners[0]
		s = s.leave(0, deleted, c.until)
		if c.at <= o.answered {
			// The levels may be those of the key that is gone and of a later one.
			s = s.with(past{hold: o.hold, phase: deleted, levels: none, until: c.until})
		}
	}
	return s
}

func (s state) equal(other state) bool {
	return s.token == other.token && slices.Equal(s.owners, other.owners) && slices.Equal(s.past, other.past)
}

func (s state) hash() uint64 {
	h := uint64(14695981039346656037)
	mix := func(n int64) { h = (h ^ uint64(n)) * 1099511628211 }
	mix(s.token)
	for _, o := range s.owners {
		mix(int64(o.hold))
	}
	mix(none)
	for _, p := range s.past {
		mix(int64(p.hold))
		mix(int64(p.phase)<<8 | int64(p.told))
	}
	return h
}

func (s state) String() string {
	return fmt.Sprintf("owners %v, token %d, past %v", s.owners, s.token, s.past)
}

func (k kind) String() string {
	return [...]string{
		"acquire", "try: refused", "release", "release: not confirmed", "release: not held",
		"held", "expire", "told lost", "finish", "delete",
	}[k]
}

func (c call) String() string {
	words := []string{c.kind.String()}
	if c.kind != remove {
		words = append(words, fmt.Sprintf("hold %d", c.hold))
	}
	if c.kind == acquire && c.token != none {
		words = append(words, fmt.Sprintf("token %d", c.token))
	}
	return strings.Join(words, ", ")
}

// model is what Porcupine searches with, from a state on. The input and the output are one value, because
// only operations with a known outcome are in the history.
func model(begin state) porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return begin },
		Step: func(s, input, _ interface{}) (bool, interface{}) {
			ok, next := step(s.(state), input.(call))
			return ok, next
		},
		Equal:             func(a, b interface{}) bool { return a.(state).equal(b.(state)) },
		Hash:              func(s interface{}) uint64 { return s.(state).hash() },
		DescribeOperation: func(input, _ interface{}) string { return input.(call).String() },
		DescribeState:     func(s interface{}) string { return s.(state).String() },
	}
}

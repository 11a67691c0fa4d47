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

// state is a lock: at most one hold owns it.
type state struct {
	owner  int
	levels int64
	// When the acquisition of the owner was answered.
	answered int64
	// The highest token so far.
	token int64
	// In the order of their numbers. States share it: nobody writes to one that exists.
	past []past
}

func free() state { return state{owner: none, token: none} }

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
func (s state) leave(phase phase, until int64) state {
	p := past{hold: s.owner, phase: phase, levels: s.levels, until: until}
	s.owner, s.levels, s.answered = none, 0, 0
	return s.with(p)
}

// step is the mutex: whether the operation may have this outcome in this state, and the state that follows.
func step(s state, c call) (bool, state) {
	if c.kind == acquire {
		if s.owner != none || c.token != none && c.token <= s.token {
			return false, s
		}
		s.owner, s.levels, s.answered = c.hold, c.levels, c.answered
		if c.token != none {
			s.token = c.token
		}
		return true, s
	}
	if c.kind == try {
		return s.owner != none, s
	}
	if c.kind == remove {
		return true, s.removed(c)
	}
	owns := s.owner == c.hold
	at, found := s.find(c.hold)
	var p past
	if found {
		p = s.past[at]
	}
	switch c.kind {
	case release:
		if owns {
			counted := c.levels == s.levels
			s.owner, s.levels, s.answered = none, 0, 0
			return counted, s
		}
		// A key that somebody else deleted cannot be told from one that the first copy of a release deleted.
		if found && p.phase == deleted && p.told == 0 && (p.levels == none || p.levels == c.levels) {
			return true, s.without(at)
		}
		return false, s
	case letGo:
		if owns {
			return true, s.leave(leaving, 0)
		}
		return found, s
	case notHeld:
		return found && p.phase != leaving, s
	case look:
		return owns || found && p.phase == deleted && p.told == 0 && c.at <= p.until, s
	case expire:
		if owns {
			return true, s.leave(expired, 0)
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

// removed takes the key away, from its owner and from those whose release is under way.
func (s state) removed(c call) state {
	for _, p := range s.past {
		if p.phase == leaving {
			p.phase, p.until = deleted, c.until
			s = s.with(p)
		}
	}
	if s.owner == none {
		return s
	}
	if c.at <= s.answered {
		// The levels may be those of the key that is gone and of a later one.
		s.levels = none
	}
	return s.leave(deleted, c.until)
}

func (s state) equal(other state) bool {
	return s.owner == other.owner && s.levels == other.levels && s.answered == other.answered &&
		s.token == other.token && slices.Equal(s.past, other.past)
}

func (s state) hash() uint64 {
	h := uint64(14695981039346656037)
	mix := func(n int64) { h = (h ^ uint64(n)) * 1099511628211 }
	mix(int64(s.owner))
	mix(s.token)
	for _, p := range s.past {
		mix(int64(p.hold))
		mix(int64(p.phase)<<8 | int64(p.told))
	}
	return h
}

func (s state) String() string {
	return fmt.Sprintf("owner %d, token %d, past %v", s.owner, s.token, s.past)
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

// mutex is what Porcupine searches with, from a state on. The input and the output are one value, because
// only operations with a known outcome are in the history.
func mutex(begin state) porcupine.Model {
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

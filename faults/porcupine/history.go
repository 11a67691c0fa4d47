package main

import (
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// hold is an acquisition that a program called, and everything that came of it. conformance/drivers/README.md says what each
// field means. Times are nanoseconds.
type hold struct {
	who              string
	called, answered int64
	status           string
	tried            bool
	token            int64
	counted, told    int64
	sure             int64
	kept             bool
	until            int64
	freed, done      int64
	release          string
	watched          bool
	lost             []int64
	permits          int64
}

// deletion is a key that somebody else deletes.
type deletion struct{ called, answered int64 }

// history is what happened to one name.
type history struct {
	holds     []hold
	deletions []deletion
	// How many permits there are, one for a lock, and for how long they are kept beyond their lease.
	limit, margin int64
}

// rules are the numbers of the lock that a history is judged by.
type rules struct {
	lease int64
	// A client relies on a lease for this long, from the call of its acquisition on.
	reliedOn int64
	// Porcupine gives up on one part of a history after this time.
	limit time.Duration
}

// granted says whether the caller had the lock for certain.
func (h *hold) granted() bool { return h.status == "ok" }

// lostAt is when the holder knew of the loss at the latest.
func (h *hold) lostAt() (int64, bool) {
	at, known := int64(0), false
	if h.release == "lost" {
		at, known = h.done, true
	}
	for _, told := range h.lost {
		if !known || told < at {
			at, known = told, true
		}
	}
	return at, known
}

// unknown is when an operation whose outcome is not known may have owned the lock: an acquisition without an answer,
// a release that was not confirmed, a hold that was lost, a process that was killed. It lasts until the lease must
// have ended. An acquisition that was granted may have been granted before, by a copy whose answer was lost.
func (h *hold) unknown(lease int64) (from, to int64, any bool) {
	switch {
	case h.granted() && h.release == "ok":
		return h.called, h.answered, true
	case h.granted():
		return h.called, max(h.answered, h.done) + 2*lease, true
	case h.status == "timeout" && h.tried:
		// It was refused.
		return 0, 0, false
	case h.status == "timeout" || h.status == "cancelled" || h.status == "foreign_kind":
		// If its last try was granted, that is released at once: one more copy, and the way there.
		return h.called, h.answered + lease, true
	}
	return h.called, h.answered + 2*lease, true
}

// operations are the calls of a history with known outcomes, for Porcupine. A refusal that an unknown outcome may
// explain is marked.
func (h *history) operations(r rules) (ops []porcupine.Operation) {
	add := func(c call, begin, end int64) {
		c.at = begin
		ops = append(ops, porcupine.Operation{ClientId: 0, Input: c, Call: begin, Return: end})
	}
	excuses := h.excuses(r)
	for number := range h.holds {
		hold := &h.holds[number]
		if !hold.granted() {
			if hold.tried && hold.status == "timeout" {
				excused := excuses(hold.called, hold.answered)
				add(call{kind: try, hold: number, excused: excused, permits: hold.permits}, hold.called, hold.answered)
			}
			continue
		}
		add(call{
			kind: acquire, hold: number, token: hold.token, levels: hold.counted, answered: hold.answered, permits: hold.permits,
		}, hold.called, hold.answered)
		for _, at := range hold.lost {
			add(call{kind: tell, hold: number}, at, at)
		}
		if hold.release == "ok" {
			add(call{kind: release, hold: number, levels: hold.told}, hold.freed, hold.done)
			continue
		}
		if hold.sure > hold.answered {
			add(call{kind: look, hold: number}, hold.sure, hold.sure)
		}
		add(call{kind: letGo, hold: number}, hold.freed, hold.freed)
		// Its lease lasts as long as its client relied on it: a loss before that has another cause. It may be over
		// before the acquisition is answered, when the process was stopped meanwhile.
		ends := max(hold.sure, hold.called+r.reliedOn, hold.until)
		lost, known := hold.lostAt()
		if !known || ends <= lost {
			// A caller may have waited for longer than that before the server granted it.
			add(call{kind: expire, hold: number}, ends, max(ends, hold.answered))
		}
		last, over := max(hold.freed, hold.done), call{kind: finish, hold: number, most: 1}
		if !known || ends <= lost {
			last = max(last, ends)
		}
		for _, at := range hold.lost {
			last = max(last, at)
		}
		if hold.release == "lost" {
			add(call{kind: notHeld, hold: number}, hold.freed, hold.done)
			// A loss that the release found is told by its answer, and perhaps by nothing else.
			if hold.watched && !hold.kept {
				over.least = 1
			}
		}
		last = max(last, hold.sure)
		add(over, last, last)
	}
	for _, d := range h.deletions {
		add(call{kind: remove, hold: none, until: d.answered + r.lease}, d.called, d.answered)
	}
	return ops
}

// excuses tells whether an operation with an unknown outcome may have owned the lock at some time of an interval.
func (h *history) excuses(r rules) func(from, to int64) bool {
	type span struct{ from, to int64 }
	var spans []span
	for number := range h.holds {
		if from, to, any := h.holds[number].unknown(r.lease + h.margin); any {
			spans = append(spans, span{from, to})
		}
	}
	sort.Slice(spans, func(a, b int) bool { return spans[a].from < spans[b].from })
	// The latest end of a span and of all before it.
	for i := 1; i < len(spans); i++ {
		spans[i].to = max(spans[i].to, spans[i-1].to)
	}
	return func(from, to int64) bool {
		begun := sort.Search(len(spans), func(i int) bool { return spans[i].from > to })
		return begun > 0 && spans[begun-1].to >= from
	}
}

// verdict is what became of a history.
type verdict struct {
	Operations int      `json:"operations"`
	Parts      int      `json:"parts"`
	Largest    int      `json:"largest"`
	Refusals   int      `json:"refusals"`
	Excused    int      `json:"excused"`
	Violations int      `json:"violations"`
	Undecided  int      `json:"undecided"`
	Messages   []string `json:"messages"`
}

// judge has Porcupine look for an order of all operations that a mutex, or a semaphore, allows.
func (h *history) judge(name string, r rules) verdict {
	ops := h.operations(r)
	v := verdict{Operations: len(ops), Messages: []string{}}
	for _, op := range ops {
		if op.Input.(call).kind == try {
			v.Refusals++
		}
	}
	for _, part := range cut(ops, h.limit, enough) {
		v.Parts++
		v.Largest = max(v.Largest, len(part.ops))
		result := porcupine.CheckOperationsTimeout(model(part.begin), part.ops, r.limit)
		if result != porcupine.Ok {
			// Certain holds do not explain it all. An unknown outcome may explain a refusal, and nothing else.
			if rest := part.unexcused(); len(rest) < len(part.ops) {
				v.Excused += len(part.ops) - len(rest)
				result = porcupine.CheckOperationsTimeout(model(part.begin), rest, r.limit)
			}
		}
		switch result {
		case porcupine.Ok:
		case porcupine.Unknown:
			v.Undecided++
			v.Messages = append(v.Messages, fmt.Sprintf("%s: no decision within %s %s", name, r.limit, span(part.ops)))
		default:
			v.Violations++
			v.Messages = append(v.Messages, fmt.Sprintf("%s: no order of a %s %s%s", name, h.kind(), span(part.ops), h.stuck(part, r)))
		}
	}
	return v
}

func (h *history) kind() string {
	if h.limit == 1 {
		return "mutex"
	}
	return fmt.Sprintf("semaphore of %d", h.limit)
}

// unexcused are the operations of a part without the refusals that an unknown outcome may explain.
func (p part) unexcused() []porcupine.Operation {
	return slices.DeleteFunc(slices.Clone(p.ops), func(op porcupine.Operation) bool { return op.Input.(call).excused })
}

// stuck says where the longest order that Porcupine found ends: what would have to come next, and cannot.
func (h *history) stuck(p part, r rules) string {
	ops := p.unexcused()
	_, info := porcupine.CheckOperationsVerbose(model(p.begin), ops, r.limit)
	var longest []porcupine.Operation
	for _, order := range info.PartialLinearizationsOperations()[0] {
		if len(order) > len(longest) {
			longest = order
		}
	}
	now, placed := p.begin, map[call]int{}
	for _, op := range longest {
		_, now = step(now, op.Input.(call))
		placed[op.Input.(call)]++
	}
	var next *porcupine.Operation
	for i := range ops {
		c := ops[i].Input.(call)
		if placed[c]--; placed[c] < 0 && (next == nil || ops[i].Return < next.Return) {
			next = &ops[i]
		}
	}
	if next == nil {
		return ""
	}
	name := func(hold int) string {
		one := h.holds[hold]
		return fmt.Sprintf("%s (called %d, %s%s)", one.who, one.called, one.status, one.release)
	}
	c, owners := next.Input.(call), []string{}
	for _, o := range now.owners {
		owners = append(owners, name(o.hold))
	}
	if len(owners) == 0 {
		owners = append(owners, "nobody")
	}
	asking := "somebody"
	if c.hold != none {
		asking = name(c.hold)
	}
	return fmt.Sprintf(": %s of %s from %d to %d cannot follow while %s owns it, the highest token is %d, and %d others are spoken of",
		c.kind, asking, next.Call, next.Return, strings.Join(owners, " and "), now.token, len(now.past))
}

func span(ops []porcupine.Operation) string {
	begin, end := ops[0].Call, ops[0].Return
	for _, op := range ops {
		begin, end = min(begin, op.Call), max(end, op.Return)
	}
	return fmt.Sprintf("for %d operations from %d to %d", len(ops), begin, end)
}

// enough operations are a part of a history. Porcupine remembers a set of all operations for every one of them, so
// that its memory grows with the square of their number.
const enough = 64

// part is a stretch of a history that can be judged alone.
type part struct {
	begin state
	ops   []porcupine.Operation
}

// cut divides a history at moments at which the state of the lock is certain, so that the history has an order if
// and only if each of its parts has one. Such a moment is one of these two:
//
//   - No operation is under way, and no hold is left of which something else is said.
//   - Some holds own the lock, or the permits: their acquisitions have been answered, nothing that may end them has been
//     called, and the history speaks of no other hold that has been granted before. All that is under way are acquisitions of others,
//     each of which wants more permits than these leave; nobody has deleted the key since the first of these calls, and the lease of
//     none of them has run out. None of them can come before these holds, for it would have to end before, which nothing does; so
//     all of them come later than this moment.
//
// Acquisitions that are under way at such a moment belong to the next part and begin with it.
func cut(ops []porcupine.Operation, limit int64, enough int) []part {
	events := edges(ops)
	holds := 0
	for i := range ops {
		holds = max(holds, ops[i].Input.(call).hold+1)
	}
	var parts []part
	now := part{begin: free(limit)}
	token := int64(none)
	waiting := map[int]bool{}         // acquisitions that are under way
	others := 0                       // whatever else is
	open := map[int]int{}             // what has been granted and is spoken of still: its acquisition
	ending := make([]bool, holds)     // whether an end of the hold has been called
	over := make([]bool, holds)       // whether the history has no more to say about it
	deletedAt := int64(math.MinInt64) // when a key was deleted for the last time
	for i, e := range events {
		c := ops[e.op].Input.(call)
		switch {
		case !e.end && c.kind == acquire:
			waiting[e.op] = true
		case !e.end:
			others++
			if c.kind != try && c.kind != remove && c.kind != look {
				ending[c.hold] = true
			}
		default:
			now.ops = append(now.ops, ops[e.op])
			switch c.kind {
			case acquire:
				delete(waiting, e.op)
				token = max(token, c.token)
				if !over[c.hold] {
					open[c.hold] = e.op
				}
			case release, finish:
				over[c.hold] = true
				delete(open, c.hold)
			case remove:
				deletedAt = e.time
			}
			if c.kind != acquire {
				others--
			}
		}
		if len(now.ops) < enough || others > 0 || i+1 < len(events) && events[i+1].time == e.time {
			continue
		}
		begin, first, ended := free(limit), e.time, false
		begin.token = token
		for hold, op := range open {
			first, ended = min(first, ops[op].Call), ended || ending[hold]
			got := ops[op].Input.(call)
			begin = begin.enter(owner{hold, got.levels, got.answered, got.permits})
		}
		for other := range waiting {
			wanted := ops[other].Input.(call)
			first = min(first, ops[other].Call)
			// If its lease ran out while its process was stopped, it came before these holds.
			ended = ended || ending[wanted.hold] || wanted.permits <= begin.free
		}
		nothing := len(open) == 0 && len(waiting) == 0
		if !nothing && (ended || begin.free < 0 || deletedAt >= first) {
			continue
		}
		parts = append(parts, now)
		now = part{begin: begin}
		for other := range waiting {
			ops[other].Call = e.time + 1
		}
	}
	if len(now.ops) > 0 {
		parts = append(parts, now)
	}
	return parts
}

// edge is the begin or the end of an operation.
type edge struct {
	time int64
	end  bool
	op   int
}

// edges are in the order of time. Begins come before ends, because Porcupine takes operations that touch as concurrent.
func edges(ops []porcupine.Operation) []edge {
	all := make([]edge, 0, 2*len(ops))
	for i := range ops {
		all = append(all, edge{ops[i].Call, false, i}, edge{ops[i].Return, true, i})
	}
	sort.Slice(all, func(a, b int) bool {
		x, y := all[a], all[b]
		if x.time != y.time {
			return x.time < y.time
		}
		if x.end != y.end {
			return !x.end
		}
		return x.op < y.op
	})
	return all
}

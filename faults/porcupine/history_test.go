package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// Times of these histories are hundredths of a lease.
const lease = 100

var judged = rules{lease: lease, reliedOn: 97, limit: time.Minute}

// held is a hold that was released: called a little before it began, and answered a little after its end.
func held(begin, end int64, token int64) hold {
	return hold{
		who: "a", called: begin - 10, answered: begin, status: "ok", token: token, counted: 1, told: 1,
		sure: end, kept: true, freed: end, done: end + 10, release: "ok", watched: true, permits: 1,
	}
}

// lost is a hold that was lost: called held for the last time at its end, and told soon after.
func lost(begin, end int64, token int64) hold {
	h := held(begin, end, token)
	h.release, h.lost, h.kept = "lost", []int64{end + 5}, false
	h.freed, h.done = end+6, end+10
	return h
}

func refused(at int64) hold {
	return hold{who: "r", called: at, answered: at + 1, status: "timeout", tried: true, token: none, watched: true, permits: 1}
}

// failed is an acquisition that brought nothing, as far as its caller knows.
func failed(status string, called, answered int64) hold {
	return hold{who: "f", called: called, answered: answered, status: status, token: none, watched: true, permits: 1}
}

// mutex is the same history of a lock.
func (h history) mutex() *history {
	h.limit = 1
	return &h
}

func with(h hold, change func(*hold)) hold {
	change(&h)
	return h
}

func TestHistoriesThatAreRight(t *testing.T) {
	cases := map[string]history{
		"one after the other": {holds: []hold{held(100, 200, 5), held(205, 300, 6), refused(250)}},
		"a release and an acquisition that touch": {holds: []hold{
			with(held(100, 200, 1), func(h *hold) { h.done = 200 }),
			with(held(200, 300, 2), func(h *hold) { h.called = 200 }),
		}},
		"a waiter from before the first to after the second": {holds: []hold{
			with(held(400, 500, 3), func(h *hold) { h.called = 50 }), held(100, 200, 1), held(250, 300, 2),
		}},
		"a refusal at the moment of a release":        {holds: []hold{held(100, 200, 1), refused(205)}},
		"a loss by expiry, and the next one after it": {holds: []hold{lost(100, 200, 1), held(220, 300, 2)}},
		"a loss by a deletion, and the next one while the first does not know": {
			holds:     []hold{lost(100, 210, 1), held(180, 300, 2)},
			deletions: []deletion{{150, 160}},
		},
		"a deleted hold that its release confirms": {
			holds: []hold{held(100, 210, 1), held(180, 300, 2)}, deletions: []deletion{{150, 160}},
		},
		"a hold that is deleted before its acquisition is answered": {
			holds: []hold{
				with(lost(160, 210, 1), func(h *hold) { h.called = 100 }), held(150, 300, 2),
			},
			deletions: []deletion{{130, 135}},
		},
		"a loss that only the release tells": {holds: []hold{
			with(lost(100, 200, 1), func(h *hold) { h.lost, h.kept = nil, true }),
		}},
		"a killed process may have been told more than it wrote": {holds: []hold{
			with(lost(100, 200, 1), func(h *hold) { h.lost, h.watched = nil, false }),
		}},
		"a wait of more than a lease, then a grant whose answer comes late": {holds: []hold{
			held(100, 250, 1),
			with(lost(300, 0, 2), func(h *hold) { h.called, h.lost, h.freed, h.done = 90, []int64{301}, 302, 303 }),
		}},
		"a lease that is over before its acquisition is answered": {holds: []hold{
			with(lost(260, 0, 1), func(h *hold) { h.called, h.lost, h.freed, h.done = 100, []int64{261}, 262, 263 }),
			held(205, 230, 2),
		}},
		"a release without an answer, and the next one at once": {holds: []hold{
			with(held(100, 200, 1), func(h *hold) { h.release, h.done = "unanswered", 260 }), held(215, 300, 2),
		}},
		"a release that was lost in the network was done all the same": {holds: []hold{
			with(lost(100, 200, 1), func(h *hold) { h.lost, h.kept, h.until, h.done = nil, true, 250, 260 }),
			held(220, 300, 2),
		}},
		"a refusal after an acquisition without an answer": {holds: []hold{
			failed("unanswered", 100, 150), refused(340),
		}},
		"a refusal after a process was killed": {holds: []hold{failed("died", 100, 150), refused(340)}},
		"a refusal by a copy of an acquisition whose answer was lost": {holds: []hold{
			with(held(500, 510, 3), func(h *hold) { h.called = 100 }), refused(150), held(250, 300, 1), held(350, 400, 2),
		}},
		"a refusal while a timeout is cleaned up":                {holds: []hold{failed("timeout", 100, 150), refused(240)}},
		"a refusal while a lost hold may still be on the server": {holds: []hold{lost(100, 200, 1), refused(300)}},
		"an acquisition without an answer excludes nobody": {holds: []hold{
			failed("died", 100, 150), held(120, 200, 1), failed("unanswered", 150, 160), held(215, 300, 2),
		}},
		"no token of those that have none": {holds: []hold{held(100, 200, none), held(215, 300, none)}},
	}
	for name, h := range cases {
		t.Run(name, func(t *testing.T) {
			if v := h.mutex().judge("n", judged); v.Violations != 0 || v.Undecided != 0 {
				t.Fatalf("%+v", v)
			}
		})
	}
}

func TestHistoriesThatAreWrong(t *testing.T) {
	cases := map[string]history{
		"two at once":                               {holds: []hold{held(100, 200, 1), held(199, 300, 2)}},
		"inside a long one":                         {holds: []hold{held(100, 900, 1), held(200, 300, 2), held(1000, 1100, 3)}},
		"inside a lost one":                         {holds: []hold{lost(100, 300, 1), held(200, 250, 2)}},
		"a deletion of later":                       {holds: []hold{lost(100, 210, 1), held(180, 300, 2)}, deletions: []deletion{{185, 190}}},
		"a refusal while free":                      {holds: []hold{held(100, 200, 1), refused(211)}},
		"a refusal before an acquisition is called": {holds: []hold{refused(150), held(170, 200, 1)}},
		"a refusal before anybody":                  {holds: []hold{refused(50)}},
		"a refusal that only itself explains":       {holds: []hold{refused(50), refused(52)}},
		"a refusal long after a process was killed": {holds: []hold{failed("died", 100, 150), refused(351)}},
		"a refusal after a timeout was cleaned up":  {holds: []hold{failed("timeout", 100, 150), refused(251)}},
		"a token that falls":                        {holds: []hold{held(100, 200, 6), held(215, 300, 5)}},
		"a token twice":                             {holds: []hold{held(100, 200, 6), held(215, 300, 6)}},
		"a wrong count":                             {holds: []hold{with(held(100, 200, 1), func(h *hold) { h.told = 2 })}},
		"a loss that is not told":                   {holds: []hold{with(lost(100, 200, 1), func(h *hold) { h.lost = nil })}},
		"a loss that is told twice": {holds: []hold{
			with(lost(100, 200, 1), func(h *hold) { h.lost = []int64{205, 206} }),
		}},
		"told lost, and called held": {holds: []hold{
			with(lost(100, 200, 1), func(h *hold) { h.lost = []int64{198} }),
		}},
		"told lost, and released": {holds: []hold{
			with(held(100, 200, 1), func(h *hold) { h.lost = []int64{198} }),
		}},
		"deleted, told lost, and released": {
			holds:     []hold{with(held(100, 200, 1), func(h *hold) { h.lost = []int64{198} })},
			deletions: []deletion{{150, 160}},
		},
		"held for more than a lease after a deletion": {
			holds: []hold{lost(100, 265, 1)}, deletions: []deletion{{150, 160}},
		},
		"a loss without a cause, told by an event": {holds: []hold{lost(100, 150, 1)}},
		"a loss without a cause, told by the release": {holds: []hold{
			with(lost(100, 150, 1), func(h *hold) { h.lost, h.kept = nil, true }),
		}},
		"a loss before the end of what was renewed": {holds: []hold{
			with(lost(100, 500, 1), func(h *hold) { h.lost, h.kept, h.until = nil, true, 520 }),
		}},
		"a loss whose deletion came later": {holds: []hold{lost(100, 150, 1)}, deletions: []deletion{{170, 175}}},
		"the next one before the lease of one that is not answered yet is over": {holds: []hold{
			with(lost(260, 0, 1), func(h *hold) { h.called, h.lost, h.freed, h.done = 100, []int64{261}, 262, 263 }),
			held(150, 180, 2),
		}},
		"the next one before the lease of a lost one is over": {holds: []hold{
			with(lost(100, 150, 1), func(h *hold) { h.lost, h.freed, h.done = []int64{205}, 210, 215 }),
			held(170, 180, 2),
		}},
	}
	for name, h := range cases {
		t.Run(name, func(t *testing.T) {
			if v := h.mutex().judge("n", judged); v.Violations == 0 {
				t.Fatalf("%+v", v)
			}
		})
	}
}

// played is a random history of a mutex whose losses are told, and now and then something in it is wrong.
func played(random *rand.Rand) history {
	var h history
	time := int64(100)
	for token := int64(1); token < 30; token++ {
		begin := time + random.Int63n(4)
		end := begin + 1 + random.Int63n(30)
		next := held(begin, end, token)
		next.called = begin - random.Int63n(60)
		next.done = end + random.Int63n(5)
		time = next.done
		switch random.Intn(12) {
		case 0:
			next = lost(begin, begin+100+random.Int63n(10), token)
			next.called = begin
			time = next.done
		case 1:
			at := begin + random.Int63n(end-begin+1)
			h.deletions = append(h.deletions, deletion{at, at + random.Int63n(3)})
		case 2:
			next.release, next.done = "unanswered", next.done+random.Int63n(200)
		case 3:
			h.holds = append(h.holds, failed("died", begin-random.Int63n(40), end))
		}
		for tries := random.Intn(3); tries > 0; tries-- {
			h.holds = append(h.holds, refused(begin+random.Int63n(end-begin+1)-1))
		}
		switch random.Intn(60) {
		case 0:
			next.answered -= random.Int63n(10)
			next.called = min(next.called, next.answered)
		case 1:
			next.told++
		case 2:
			next.token -= random.Int63n(3)
		case 3:
			next.lost = append(next.lost, end)
		}
		h.holds = append(h.holds, next)
	}
	return h
}

// permits is a hold of so many of them.
func permits(h hold, permits int64) hold {
	h.permits = permits
	return h
}

func TestHistoriesOfPermitsThatAreRight(t *testing.T) {
	cases := map[string]history{
		"as many as there are": {holds: []hold{held(100, 300, none), permits(held(110, 200, none), 2), permits(held(215, 250, none), 2)}},
		"all at once, after the others": {holds: []hold{
			held(100, 200, none), held(100, 210, none), held(100, 190, none), permits(held(225, 300, none), 3),
		}},
		"a refusal of more than are free": {holds: []hold{held(100, 200, none), held(100, 200, none), permits(refused(150), 2)}},
		"a refusal while a killed process may have the rest": {holds: []hold{
			permits(held(100, 600, none), 2), failed("died", 100, 150), refused(390),
		}},
		"the next ones after a loss by expiry": {holds: []hold{permits(lost(100, 200, none), 3), permits(held(220, 300, none), 3)}},
		"the next ones while the deleted do not know": {
			holds:     []hold{permits(lost(100, 210, none), 2), lost(100, 210, none), permits(held(180, 300, none), 3)},
			deletions: []deletion{{150, 160}},
		},
	}
	for name, h := range cases {
		h.limit, h.margin = 3, 40
		t.Run(name, func(t *testing.T) {
			if v := h.judge("n", judged); v.Violations != 0 || v.Undecided != 0 {
				t.Fatalf("%+v", v)
			}
		})
	}
}

func TestHistoriesOfPermitsThatAreWrong(t *testing.T) {
	cases := map[string]history{
		"one more than there are": {holds: []hold{
			held(100, 200, none), held(100, 200, none), held(100, 200, none), held(150, 250, none),
		}},
		"two beside two":                   {holds: []hold{permits(held(100, 200, none), 2), permits(held(150, 250, none), 2)}},
		"all beside one":                   {holds: []hold{held(100, 200, none), permits(held(150, 160, none), 3)}},
		"beside a lost one":                {holds: []hold{permits(lost(100, 200, none), 3), held(150, 250, none)}},
		"a refusal while as many are free": {holds: []hold{held(100, 200, none), permits(refused(150), 2)}},
		"a refusal long after a killed process": {holds: []hold{
			permits(held(100, 600, none), 2), failed("died", 100, 150), refused(431),
		}},
		"a wrong count":           {holds: []hold{with(held(100, 200, none), func(h *hold) { h.told = 2 })}},
		"a loss that is not told": {holds: []hold{held(100, 300, none), with(lost(100, 200, none), func(h *hold) { h.lost = nil })}},
	}
	for name, h := range cases {
		h.limit, h.margin = 3, 40
		t.Run(name, func(t *testing.T) {
			if v := h.judge("n", judged); v.Violations == 0 {
				t.Fatalf("%+v", v)
			}
		})
	}
}

// playedPermits is a random history of three permits, and now and then something in it is wrong.
func playedPermits(random *rand.Rand) history {
	h := history{limit: 3}
	// When each permit is free again.
	ends := []int64{100, 100, 100}
	for n := 0; n < 24; n++ {
		wanted := 1 + random.Int63n(3)
		slices.Sort(ends)
		begin := ends[wanted-1] + random.Int63n(4)
		end := begin + 1 + random.Int63n(40)
		next := permits(held(begin, end, none), wanted)
		next.called = begin - random.Int63n(30)
		next.done = end + random.Int63n(5)
		for i := int64(0); i < wanted; i++ {
			ends[i] = next.done
		}
		switch random.Intn(40) {
		case 0:
			next.answered -= random.Int63n(40)
			next.called = min(next.called, next.answered)
		case 1:
			next.permits = min(3, next.permits+1)
		case 2:
			h.deletions = append(h.deletions, deletion{begin, begin + 2})
		}
		h.holds = append(h.holds, next)
		if random.Intn(4) == 0 {
			h.holds = append(h.holds, permits(refused(begin+random.Int63n(end-begin+1)), 3))
		}
	}
	return h
}

// The parts of a history have an order if and only if the whole has one.
func TestAHistoryThatIsCutHasTheVerdictOfTheWhole(t *testing.T) {
	mutexes := func(random *rand.Rand) history { return *played(random).mutex() }
	t.Run("lock", func(t *testing.T) { sameVerdict(t, mutexes) })
	t.Run("semaphore", func(t *testing.T) { sameVerdict(t, playedPermits) })
}

func sameVerdict(t *testing.T, played func(*rand.Rand) history) {
	right, wrong, cuts := 0, 0, 0
	for seed := int64(0); seed < 3000; seed++ {
		h := played(rand.New(rand.NewSource(seed)))
		whole := h.operations(judged)
		expected := porcupine.CheckOperationsTimeout(model(free(h.limit)), whole, judged.limit) == porcupine.Ok
		pieces := h.operations(judged)
		parts, got, sum := cut(pieces, h.limit, 1), true, 0
		for _, part := range parts {
			sum += len(part.ops)
			got = got && porcupine.CheckOperationsTimeout(model(part.begin), part.ops, judged.limit) == porcupine.Ok
		}
		if got != expected || sum != len(whole) {
			t.Fatalf("seed %d: the whole of %d operations is right: %v; %d parts of %d operations: %v",
				seed, len(whole), expected, len(parts), sum, got)
		}
		cuts += len(parts) - 1
		if expected {
			right++
		} else {
			wrong++
		}
	}
	if right < 500 || wrong < 500 || cuts < 3000 {
		t.Fatalf("%d histories are right, %d wrong, with %d cuts: too few to tell", right, wrong, cuts)
	}
}

// Sixteen callers wait at every time, so that there is never a moment at which nothing is under way.
func TestACrowdIsJudgedInSmallParts(t *testing.T) {
	var h history
	for n := int64(0); n < 20000; n++ {
		begin := 1000 + 10*n
		next := held(begin, begin+6, n)
		next.called, next.done = begin-160, begin+8
		h.holds = append(h.holds, next, refused(begin+2))
	}
	v := h.mutex().judge("n", judged)
	if v.Violations != 0 || v.Undecided != 0 || v.Operations != 60000 || v.Largest > 4*enough {
		t.Fatalf("%+v", v)
	}
}

// Sixty holds come and go at the same time, one of them with a wrong count. To rule out all their orders takes years.
func TestNoDecisionInTimeIsNotAVerdict(t *testing.T) {
	var h history
	for n := int64(0); n < 60; n++ {
		h.holds = append(h.holds, with(held(100, 100, none), func(h *hold) {
			h.called, h.answered, h.freed, h.done = 0, 200, 0, 200
		}))
	}
	h.holds[0].told = 2
	v := h.mutex().judge("n", rules{lease: lease, reliedOn: 97, limit: 50 * time.Millisecond})
	if v.Undecided != 1 || v.Violations != 0 || !strings.Contains(v.Messages[0], "no decision within 50ms") {
		t.Fatalf("%+v", v)
	}
}

func TestNamesAreAnsweredOneByOne(t *testing.T) {
	good := "h a 90 100 ok 0 7 1 1 200 1 250 200 210 ok 1 - 1\n"
	bad := "h b 140 150 ok 0 8 1 1 160 0 0 160 270 lost 1 165,166 1\n"
	in := "n one 1 0\n" + good + ".\nn two 1 0\nd 1 2\n" + good + bad + ".\n"
	var out strings.Builder
	if err := serve([]string{"100", "97", "60"}, strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	answers := strings.Split(strings.TrimSpace(out.String()), "\n")
	for at, expected := range []verdict{{Operations: 2}, {Operations: 10, Violations: 1}} {
		var v verdict
		if err := json.Unmarshal([]byte(answers[at]), &v); err != nil {
			t.Fatal(err)
		}
		if v.Operations != expected.Operations || v.Violations != expected.Violations {
			t.Fatalf("%d: %s", at, answers[at])
		}
	}
}

func TestALineThatIsNotUnderstoodIsTold(t *testing.T) {
	for in, expected := range map[string]string{
		"x 1":          `line 1: no such kind of line: "x"`,
		"n m 1 0\nd 1": "line 2: a word is missing",
		"d 1 two":      `line 1: "two" is no number`,
		"d 1 2 3":      "line 1: 1 words too many",
		"h a 1 2 ok 0 - 1 1 2 1 0 2 3 ok 1 4,x 1": `line 1: "x" is no number`,
	} {
		err := serve([]string{"100", "97", "60"}, strings.NewReader(in+"\n"), &strings.Builder{})
		if fmt.Sprint(err) != expected {
			t.Errorf("%q: %v", in, err)
		}
	}
	if err := serve([]string{"100"}, strings.NewReader(""), &strings.Builder{}); err == nil {
		t.Error("two arguments are missing")
	}
}

// A process that is stopped hears of its grant when its lease is over, and the next holder has the lock by then.
// A cut while that holder owns it would leave the end of the lease in one part, and its begin in the next.
func TestALeaseIsNotCutFromItsLateAnswer(t *testing.T) {
	h := history{holds: []hold{
		with(lost(260, 0, 1), func(h *hold) { h.called, h.lost, h.freed, h.done = 100, []int64{261}, 262, 263 }),
		held(205, 230, 2),
	}}
	for _, part := range cut(h.operations(judged), 1, 1) {
		if result := porcupine.CheckOperationsTimeout(model(part.begin), part.ops, judged.limit); result != porcupine.Ok {
			t.Fatalf("a part is %v: %v", result, part.ops)
		}
	}
}

/* The queue of a lock, for the model checker SPIN: `make model`. Read it beside docs/explanation/protocol.md.
 *
 * Processes with callers in line want the lock of one item. Each caller sees the item's value with its grant, and counts
 * it up by each of its writes. DynamoDB applies one request at a time. FAULTS in all: an answer is lost; a request is
 * repeated, or a copy of it arrives at any later time; a process dies. Waiters evict the entries ahead of them whenever
 * they like, EVICTIONS in all, as no clock is trusted. What a caller has seen may be old when the caller acts by it.
 *
 * Each of these rules can be taken out by -D. SPIN then has to find a counterexample:
 *   NO_ORDER          an entry holds the lock when no entry has a smaller ticket
 *   NO_GUARD          a write names the entry of its holder
 *   NO_TICKET         a write names the ticket of that entry as well
 *   NO_NUMBER         an entry counts its writes: a write needs a larger number than the last
 *   NO_CERTAINTY      after a write without an answer a read decides nothing; the same write is sent again
 *   BLIND_HAND_OVER   the write that hands over is a guarded write, as the others are
 *   ONE_TICKET        a caller to whom the lock is handed over has a ticket of its own
 *   OPEN              a write outside of the lock needs an empty queue
 */
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef EVICTIONS
#define EVICTIONS 1
#endif
#ifndef PROCESSES
#define PROCESSES 2
#endif
#ifndef CALLERS
#define CALLERS 2                       /* of each process */
#endif
#ifndef WRITES
#define WRITES 2                        /* of each caller; the last one removes its entry */
#endif
#define IDS (PROCESSES * CALLERS)
#define NAME(c) (p * CALLERS + c)

typedef Item { byte value; byte next = 1; byte ticket[IDS]; byte writes[IDS] };      /* ticket 0: no such entry */
typedef Request { byte kind; byte id; byte ticket; byte number; byte base; byte successor; byte members };

#define ENTER 1
#define WRITE 2
#define LAST 3                          /* a write that removes its entry */
#define HAND_OVER 4                     /* a write that removes its entry, and stores the entry of the next caller */
#define RELEASE 5
mtype = { applied, refused, lost };

Item item;
Request late;                           /* it was sent, and has not arrived; kind 0: there is none */
byte top, writer;                       /* the largest ticket of an accepted write, and whose it was */
byte acknowledged, over, faults = FAULTS, evictions = EVICTIONS;

#ifdef NO_TICKET
#define NAMED (item.ticket[q.id] != 0)
#else
#define NAMED (item.ticket[q.id] == q.ticket)
#endif
#ifdef NO_NUMBER
#define GUARDED (NAMED)
#else
#define GUARDED (NAMED && item.writes[q.id] < q.number)
#endif

/* What DynamoDB does with a request: it compares, and applies all of it or nothing. */
inline apply(q) {
  answer = refused;
  if
  :: q.kind == ENTER && item.ticket[q.id] == 0 ->
     item.ticket[q.id] = item.next; item.writes[q.id] = 0; item.next = item.next + q.members; answer = applied
  :: q.kind == RELEASE && item.ticket[q.id] != 0 -> item.ticket[q.id] = 0; answer = applied
  :: q.kind >= WRITE && q.kind <= HAND_OVER ->
     if
#ifdef NO_GUARD
     :: true -> answer = applied
#else
     :: GUARDED -> answer = applied
#endif
#ifdef BLIND_HAND_OVER
     :: q.kind == HAND_OVER -> answer = applied
#endif
     :: else
     fi;
     if
     :: answer == applied ->
        assert(item.value == q.base);                                          /* no update is lost */
        assert(q.ticket > top || q.ticket == top && q.id == writer);           /* tickets grow from caller to caller */
        top = q.ticket; writer = q.id; item.value++; item.writes[q.id] = q.number;
        if
        :: q.kind == WRITE
        :: q.kind > WRITE -> item.ticket[q.id] = 0; item.writes[q.id] = 0
        fi;
        if
        :: q.kind == HAND_OVER && q.members > 0 ->                             /* the next ticket of the draw */
#ifdef ONE_TICKET
           item.ticket[q.successor] = q.ticket
#else
           item.ticket[q.successor] = q.ticket + 1
#endif
        :: q.kind == HAND_OVER && q.members == 0 -> item.ticket[q.successor] = item.next; item.next++
        :: else
        fi
     :: else
     fi
  :: else
  fi
}

/* A request and its answer. */
inline send(q) {
  if
  :: apply(q)
  :: faults > 0 -> faults--; apply(q); apply(q)                                /* the SDK repeats it */
  :: faults > 0 -> faults--; apply(q); answer = lost
  :: faults > 0 && late.kind == 0 -> faults--;
     if
     :: answer = lost
     :: apply(q)                                                               /* and a second copy is on its way */
     fi;
     late.kind = q.kind; late.id = q.id; late.ticket = q.ticket; late.number = q.number; late.base = q.base;
     late.successor = q.successor; late.members = q.members
  fi
}

/* What an image shows to a caller. */
inline see() {
  is_in = item.ticket[me] != 0; is_first = is_in; ticket = item.ticket[me]; base = item.value; ahead = IDS; i = 0;
  do
  :: i == IDS -> break
  :: i < IDS && item.ticket[i] != 0 && item.ticket[i] < ticket -> is_first = false; ahead = i; i++
  :: else -> i++
  od;
  i = 0
#ifdef NO_ORDER
  ; is_first = is_in
#endif
}

/* What the answer of a guarded write proves: it was applied, by this copy or by an earlier one; or the lock is lost. */
inline judge(q) {
  if
  :: answer == refused && item.ticket[q.id] == q.ticket && item.writes[q.id] == q.number -> answer = applied
  :: answer == refused && q.kind == HAND_OVER && item.ticket[q.successor] != 0 -> answer = applied
  :: else
  fi;
  if
  :: answer == applied -> acknowledged++; base++
  :: else
  fi
}

inline release(entry) {                                                        /* until it is answered */
  do
  :: atomic { r.kind = RELEASE; r.id = entry; send(r); if :: answer != lost -> break :: else fi }
  od
}

inline forget() {                                                              /* what no longer matters: fewer states */
  base = 0; ticket = 0; ahead = 0; number = 0; is_in = false; is_first = false; answer = 0;
  r.kind = 0; r.id = 0; r.ticket = 0; r.number = 0; r.base = 0; r.successor = 0; r.members = 0
}

proctype Process(byte p) {
  byte caller, me, base, ticket, number, ahead, i, drawn;
  bool is_in, is_first;
  mtype answer;
  Request r;

  do
  :: caller == CALLERS -> break
  :: caller < CALLERS ->
     if
     :: ticket != 0                                                            /* handed over: that answer was its image */
     :: atomic { ticket == 0 ->
          me = NAME(caller); drawn = 1;
          if :: caller + 1 < CALLERS -> drawn++ :: true fi;                    /* a ticket for each caller in line by now */
          r.kind = ENTER; r.id = me; r.members = drawn; send(r); drawn--;
          if :: answer != lost -> see() :: else fi; answer = 0 }
     fi;
     do                                                                        /* a waiter */
     :: is_first -> break
     :: !is_in -> goto leaves                                                  /* evicted; or it never had an answer */
     :: is_in && !is_first ->
        if
        :: d_step { see() }
        :: d_step { evictions > 0 && ahead < IDS && item.ticket[ahead] != 0 ->
             evictions--; item.ticket[ahead] = 0; item.writes[ahead] = 0; see() }
        fi
     od;
     do                                                                        /* the holder */
     :: number == WRITES -> break
     :: number < WRITES && faults > 0 -> faults--; goto dies
     :: atomic { number < WRITES ->
          number++; r.id = me; r.ticket = ticket; r.number = number; r.base = base; r.kind = WRITE;
          if
          :: number == WRITES && caller + 1 < CALLERS ->
             r.kind = HAND_OVER; r.successor = NAME(caller + 1); r.members = drawn
          :: number == WRITES && caller + 1 == CALLERS -> r.kind = LAST
          :: else
          fi;
          send(r); judge(r) }
        if
        :: answer == lost ->
#ifdef NO_CERTAINTY
           d_step { see(); if :: is_in -> answer = applied :: else fi }
#else
           atomic { send(r); judge(r) }
#endif
        :: else
        fi;
        if :: answer != applied -> goto leaves :: else fi
     od;
     atomic {
       if
       :: r.kind == HAND_OVER -> forget(); me = NAME(caller + 1); see(); drawn = (drawn > 0 -> drawn - 1 : 0)
       :: else -> forget()
       fi;
       goto next
     };
leaves:
     release(me);
     if
     :: number == WRITES && caller + 1 < CALLERS -> release(NAME(caller + 1))  /* its entry may have been stored */
     :: else
     fi;
     atomic { forget(); drawn = 0 };
next:
     caller++
  od;
dies:
  over++
}

/* A writer that takes no lock, once, at any time; and a copy of a request that arrives late. */
init {
  byte p; mtype answer; bool has_written;
  atomic { do :: p == PROCESSES -> break :: else -> run Process(p); p++ od; p = 0 };
  do
  :: over == PROCESSES && late.kind == 0 -> break
  :: atomic { late.kind != 0 -> apply(late); answer = lost; late.kind = 0; late.id = 0; late.ticket = 0;
       late.number = 0; late.base = 0; late.successor = 0; late.members = 0 }
  :: d_step { !has_written -> has_written = true; p = 0;
#ifndef OPEN
       do :: p < IDS && item.ticket[p] == 0 -> p++ :: else -> break od;
       if :: p == IDS -> item.value++; acknowledged++ :: else fi;
#else
       item.value++; acknowledged++;
#endif
       p = 0 }
  od;
  assert(item.value >= acknowledged)                                           /* no acknowledged write is lost */
}

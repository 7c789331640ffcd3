/* Transactions of many items, for the model checker SPIN: `make model`. Read it beside docs/explanation/transactions.md.
 *
 * Two transactions read two items and write them by marks: header, marks, checks, decision, finish. Other parties meet
 * marks at any time: they look at the header, and act later by what they saw. They abort pending headers whenever they
 * like, ABORTS in all, as no clock is trusted. COPIES of marks, and the decisions, may arrive late; DEATHS transactions
 * die at some step. What is one request to DynamoDB, native transactions included, is one step here.
 *
 * As it stands, both transactions count up both items, and a single write counts up the first. Other stories by -D:
 *   SKEW      each transaction writes one item, by what it has read of both
 *   INSERT    the second item is absent at first; once it is there, another party deletes it
 *   RECREATE  another party deletes the second item, and creates it again
 *   READER    a third party takes a snapshot of both
 *
 * Each of these rules of transactions.md can be taken out by -D, as NO_R1. SPIN then has to find a counterexample: R1,
 * R2, R3, R4, R6, R8, R9, R11, R13. Of the others R5 and R7 are about what DynamoDB's reads promise together, R10 is
 * about time, and R12 about the memory of a process: the simulator has those.
 */
#define NONE 0
#define PENDING 1
#define COMMITTED 2
#define FINISHED 3
#define ABORTED 4
#define ITEMS 2
#ifndef ABORTS
#define ABORTS 1
#endif
#ifndef DEATHS
#define DEATHS 0
#endif
#ifndef COPIES
#define COPIES 1
#endif

typedef Item { bool is_there; byte value; byte id; byte mark };     /* id: of the last write; mark: transaction + 1 */
typedef Copy { bool is_sent; byte which; byte read };

Item item[ITEMS];
byte header[2], told[2], intent[4], applied[4], ids = 10;
Copy late[2];
bool late_decision[2];
byte singles, aborts = ABORTS, deaths = DEATHS, copies = COPIES, over;

#ifdef SKEW
#define WRITES(t, i) (t == i)
#else
#define WRITES(t, i) (true)
#endif
#ifdef NO_R1                            /* a version, which begins anew with each item */
#define NEXT_ID(i) item[i].id + 1
#define FIRST_ID 1
#else                                   /* an id that never comes again */
#define NEXT_ID(i) ids; ids++
#define FIRST_ID ids; ids++
#endif
#ifdef NO_R8
#define MAY_MAKE(t) (true)
#else
#define MAY_MAKE(t) (header[t] == PENDING)
#endif

inline put_mark(t, i, expected, was_marked) {
  if
  :: item[i].mark == 0 && item[i].is_there && item[i].id == expected -> item[i].mark = t + 1; was_marked = true
  :: item[i].mark == 0 && !item[i].is_there && expected == 0 && MAY_MAKE(t) -> item[i].mark = t + 1; was_marked = true
  :: else -> was_marked = false
  fi
}
inline finish(t, i) {                   /* its condition: the mark of this transaction */
  if
  :: item[i].mark == t + 1 ->
     assert(applied[t * 2 + i] == 0);                              /* each change is applied once */
     applied[t * 2 + i] = 1; item[i].value = intent[t * 2 + i]; item[i].is_there = true; item[i].mark = 0;
     item[i].id = NEXT_ID(i)
  :: else
  fi
}
inline drop(t, i) { if :: item[i].mark == t + 1 -> item[i].mark = 0 :: else fi }
inline may_die() { if :: deaths > 0 -> deaths--; goto dead :: true fi }

proctype Transaction(byte t) {
  byte value[ITEMS], id[ITEMS], i;
  bool is_good = true;

#ifndef NO_R3
  header[t] = PENDING;
#endif
  i = 0;
  do
  :: i == ITEMS -> break
  :: atomic { i < ITEMS && item[i].mark == 0 -> value[i] = item[i].value; id[i] = (item[i].is_there -> item[i].id : 0); i++ }
  od;
#ifdef SKEW
  intent[t * 2 + t] = value[0] + value[1] + 1;
#else
  atomic { intent[t * 2] = value[0] + 1; intent[t * 2 + 1] = value[1] + 1 };
#endif
#ifdef NO_R6
  i = 0;
  do
  :: i == ITEMS -> break
  :: atomic { i < ITEMS -> if :: !WRITES(t, i) && (item[i].id != id[i] || item[i].mark) -> is_good = false :: else fi; i++ }
  od;
#endif
  i = 0;
  do
  :: i == ITEMS || !is_good -> break
  :: i < ITEMS && is_good && !WRITES(t, i) -> i++
  :: atomic { i < ITEMS && is_good && WRITES(t, i) ->
       if :: copies > 0 -> copies--; late[t].is_sent = true; late[t].which = i; late[t].read = id[i] :: true fi;
       put_mark(t, i, id[i], is_good); i++ }
     may_die()
  od;
#ifdef NO_R3
  header[t] = PENDING;
#endif
#ifndef NO_R6
  atomic {
    i = 0;
    do
    :: i == ITEMS -> break
    :: i < ITEMS -> if :: !WRITES(t, i) && (item[i].id != id[i] || item[i].mark) -> is_good = false :: else fi; i++
    od
  };
#endif
  if
  :: !is_good
  :: atomic { is_good && header[t] == PENDING -> header[t] = COMMITTED }
  :: atomic { is_good && header[t] == PENDING ->                   /* the decision has no answer, and arrives or does not */
       if :: header[t] = COMMITTED :: late_decision[t] = true fi;
#ifdef NO_R11
       told[t] = ABORTED
#endif
     }
  :: is_good && header[t] != PENDING
  fi;
#ifdef NO_R9
  if :: header[t] == COMMITTED -> header[t] = FINISHED :: else fi;
#endif
  may_die();
  atomic { if :: header[t] == PENDING -> header[t] = ABORTED :: else fi };    /* decided now, by this party or by another */
  if :: told[t] == NONE -> told[t] = (header[t] == ABORTED -> ABORTED : COMMITTED) :: else fi;
  i = 0;
  do
  :: i == ITEMS -> break
  :: atomic { i < ITEMS -> if :: header[t] == ABORTED -> drop(t, i) :: else -> finish(t, i) fi; i++ }
     may_die()
  od;
  atomic { if :: header[t] == COMMITTED -> header[t] = FINISHED :: else fi };
dead:
  over++
}

/* A party that meets a mark. */
proctype Other() {
  byte t, i, seen;
  do
  :: atomic { over == 2 && item[0].mark == 0 && item[1].mark == 0 -> break }
  :: atomic { item[0].mark != 0 -> i = 0; t = item[0].mark - 1; seen = header[t] } goto meets
  :: atomic { item[1].mark != 0 -> i = 1; t = item[1].mark - 1; seen = header[t] } goto meets
  :: false ->
meets:
     if
     :: seen == COMMITTED -> atomic { finish(t, i) }
     :: seen == ABORTED || seen == FINISHED || seen == NONE -> atomic { drop(t, i) }
#ifdef NO_R4
     :: seen == PENDING && aborts > 0 -> atomic { aborts--; drop(t, i) }
#endif
     :: atomic { seen == PENDING && (aborts > 0 || over > 0) && header[t] == PENDING ->
          aborts = (aborts > 0 -> aborts - 1 : 0); header[t] = ABORTED }
     :: seen == PENDING
     fi;
     atomic { t = 0; i = 0; seen = 0 }
  od;
  over++
}

/* Requests that arrive late, and a single write. */
proctype Network() {
  byte i, id; bool ignored, has_written, has_deleted;
  do
  :: over >= 3 && !late_decision[0] && !late_decision[1] -> break
  :: atomic { late[0].is_sent && late[0].which < ITEMS -> i = late[0].which; id = late[0].read; late[0].which = ITEMS; put_mark(0, i, id, ignored); i = 0; id = 0; ignored = false }
  :: atomic { late[1].is_sent && late[1].which < ITEMS -> i = late[1].which; id = late[1].read; late[1].which = ITEMS; put_mark(1, i, id, ignored); i = 0; id = 0; ignored = false }
  :: atomic { late_decision[0] -> if :: header[0] == PENDING -> header[0] = COMMITTED :: else fi; late_decision[0] = false }
  :: atomic { late_decision[1] -> if :: header[1] == PENDING -> header[1] = COMMITTED :: else fi; late_decision[1] = false }
#ifdef INSERT
  :: atomic { !has_deleted && item[1].is_there && item[1].mark == 0 -> has_deleted = true; item[1].is_there = false; item[1].value = 0 }
#else
#ifdef RECREATE                         /* with the value that it had */
  :: atomic { !has_deleted && item[1].mark == 0 -> has_deleted = true; item[1].id = FIRST_ID }
#endif
#ifndef SKEW
#ifndef READER
  :: atomic { !has_written && (
#ifdef NO_R2
       true
#else
       item[0].mark == 0
#endif
     ) -> has_written = true; singles++; item[0].value++; item[0].id = NEXT_ID(0) }
#endif
#endif
#endif
  od
}

#ifdef READER                           /* a snapshot, that looks past what is undecided */
byte seen_value[ITEMS], seen_id[ITEMS];
inline shown(i) {
  if
  :: item[i].mark == 0 -> seen_value[i] = item[i].value
#ifdef NO_R13                           /* the header of a moment ago */
  :: item[i].mark != 0 && before[item[i].mark - 1] < COMMITTED -> seen_value[i] = item[i].value
  :: item[i].mark != 0 && before[item[i].mark - 1] >= COMMITTED -> seen_value[i] = intent[(item[i].mark - 1) * 2 + i]
#else
  :: item[i].mark != 0 && header[item[i].mark - 1] != COMMITTED -> seen_value[i] = item[i].value
  :: item[i].mark != 0 && header[item[i].mark - 1] == COMMITTED -> seen_value[i] = intent[(item[i].mark - 1) * 2 + i]
#endif
  fi
}
proctype Reader() {
  byte before[2], value[ITEMS], id[ITEMS];
  d_step { before[0] = header[0]; before[1] = header[1] };
  d_step { shown(0); value[0] = seen_value[0]; id[0] = item[0].id };
  d_step { shown(1); value[1] = seen_value[1]; id[1] = item[1].id };
  d_step { shown(0); shown(1) };                                   /* the check, in one request */
  if
  :: value[0] == seen_value[0] && value[1] == seen_value[1] && id[0] == item[0].id && id[1] == item[1].id ->
     assert(value[0] == value[1])
  :: else
  fi
}
#endif

#define DONE(t) (header[t] == COMMITTED || header[t] == FINISHED)

init {
  atomic {
    item[0].is_there = true; item[0].id = 1; item[1].id = 1;
#ifndef INSERT
    item[1].is_there = true;
#else
    item[1].id = 0;
#endif
    run Transaction(0); run Transaction(1); run Other(); run Network();
#ifdef READER
    run Reader();
#endif
  }
  over >= 3 && _nr_pr == 1 ->
  if
  :: item[0].mark == 0 && item[1].mark == 0 ->
     assert(told[0] == NONE || (told[0] == COMMITTED) == DONE(0));  /* what a caller was told is so */
     assert(told[1] == NONE || (told[1] == COMMITTED) == DONE(1));
#ifdef SKEW
     assert(!(DONE(0) && DONE(1)) || item[0].value + item[1].value == 3)     /* as one after the other */
#else
     assert(item[0].value == singles + DONE(0) + DONE(1));                   /* all or none, and nothing is lost */
#ifndef INSERT
     assert(item[1].value == DONE(0) + DONE(1))
#endif
#endif
  :: else                                                          /* a late mark: the next party that meets it drops it */
  fi
}

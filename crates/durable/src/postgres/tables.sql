-- Timers of tourbillon-durable, version 1 of the schema.

-- The versions of the crate that may use the tables: from oldest_ok to version, and later ones that
-- know this version.
create table tourbillon.meta (
  one boolean primary key default true check (one),
  version int not null,
  oldest_ok int not null,
  -- By it a process knows these tables again. A backup has the same one.
  identity bigint not null default hashtextextended(gen_random_uuid()::text, 0)
);

create table tourbillon.node (
  epoch bigint primary key,
  name text not null,
  queues text[] not null,
  -- The number of the list of queues. Whoever has read this list need not read it again.
  list int not null default 0,
  beat bigint not null default 0,
  joined timestamptz not null default clock_timestamp(),
  -- Never unset. The row stays until no timer has a claim of this epoch.
  gone timestamptz
) with (fillfactor = 50);

create table tourbillon.queue (
  name text collate "C" primary key,
  paused boolean not null default false
);

create table tourbillon.timer (
  queue text collate "C" not null check (octet_length(queue) between 1 and 64),
  key text collate "C" not null check (octet_length(key) between 1 and 512),
  shard smallint not null check (shard between 0 and 63),
  due timestamptz not null check (isfinite(due)),
  -- The first due time, before retries.
  planned timestamptz not null,
  gen bigint not null,
  attempt int not null default 0,
  fails int not null default 0,
  crashes int not null default 0,
  -- The length of the payload and the meta as text, by which nodes and lists bound what they read at one time.
  bytes int not null default 0,
  -- The node that holds it, live or not, and since when.
  claim bigint,
  claimed timestamptz,
  -- It was cancelled while it was held.
  cancelled boolean not null default false,
  -- It was scheduled while it was held: due, planned, bytes and payload are those of the timer that follows the run.
  follows boolean not null default false,
  payload jsonb not null,
  -- What is said about it beside the payload.
  meta jsonb check (jsonb_typeof(meta) = 'object'),
  primary key (queue, key),
  check ((claim is null) = (claimed is null)),
  check (claim is not null or not (cancelled or follows)),
  check (not (cancelled and follows))
) with (
  -- Each timer is changed once where it lies, by its claim, which needs as much room again. Without the room
  -- the claim would move it, and write all indexes: that takes three times as long.
  fillfactor = 45,
  autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

-- The queue leads: the backlog of one queue does not stand at the head of another one's poll.
create index timer_due on tourbillon.timer (queue, shard, due);

-- By it a node finds out which of many queues have anything due. The shard leads, so that writers whose timers are due
-- at about one time do not all write one page. The sum keeps the planner from this index where a statement names a
-- queue: while all timers are one queue's, both indexes seem to be as good.
create index timer_survey on tourbillon.timer ((shard + 0::smallint), due);

create table tourbillon.dead (
  -- Given by the function letter_1.
  id bigint primary key,
  queue text collate "C" not null,
  key text collate "C" not null,
  gen bigint not null,
  planned timestamptz not null,
  at timestamptz not null,
  attempt int not null,
  fails int not null,
  crashes int not null,
  error text not null,
  -- As in a timer.
  bytes int not null default 0,
  payload jsonb not null,
  meta jsonb
);
create index dead_queue on tourbillon.dead (queue, id);

insert into tourbillon.meta (version, oldest_ok) values (1, 1);

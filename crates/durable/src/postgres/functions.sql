-- What the calls do to a timer. The functions that end in a number belong to the crate: one version
-- of the crate calls one number, so that two versions can work side by side.
--
-- Each function takes the number of its transaction first, locks the table, and reads the clock after that.
-- Claims and ends read it when they have the locks of their rows. A write reads it before, since it passes over locked rows,
-- and again after a wait. Each statement sees what was committed before it began, so rows are
-- decided by what they are once they are locked, and by the nodes that there are at that moment.
--
-- A write inserts the keys that are not there first, for which it needs no lock. Then it decides the
-- others. Three things have a short way each: a batch of new keys, timers that nobody has claimed, and
-- runs that succeeded.
--
-- Locks on several rows are taken in the order of queue and key, which is the order of the arrays,
-- and rows that are locked by others are passed over. The settings keep the planner from reading a
-- table as a whole when its statistics are not there yet, and give each day 24 hours.

-- A number that was never drawn before: 63 random bits. A sequence could be behind the rows that are there,
-- after a failover or a copy of the rows.
create function tourbillon.generation_1() returns bigint
language sql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$ select hashtextextended(gen_random_uuid()::text, 0) & 9223372036854775807 $$;

-- The length of what a timer carries, as text.
create function tourbillon.bytes_1(p_payload jsonb, p_meta jsonb) returns int
language sql immutable security invoker
as $$ select pg_catalog.octet_length(p_payload::pg_catalog.text) + coalesce(pg_catalog.octet_length(p_meta::pg_catalog.text), 0) $$;

-- Whether a timer with this meta has a schedule. Only a node knows its next occurrence.
create function tourbillon.is_schedule_1(p_meta jsonb) returns boolean
language sql immutable security invoker
as $$ select coalesce(pg_catalog.jsonb_typeof(p_meta operator(pg_catalog.->) 'cron') operator(pg_catalog.=) 'object'
  and p_meta operator(pg_catalog.->) 'cron' operator(pg_catalog.?) 'expression', false) $$;

-- Whether the schedule of a timer is paused.
create function tourbillon.is_paused_1(p_meta jsonb) returns boolean
language sql immutable security invoker
as $$ select coalesce(tourbillon.is_schedule_1(p_meta)
  and p_meta operator(pg_catalog.#>) '{cron,paused}' operator(pg_catalog.=) 'true', false) $$;

-- A meta whose schedule is paused as that of the other meta is.
create function tourbillon.with_pause_1(p_meta jsonb, p_of jsonb) returns jsonb
language sql immutable security invoker
as $$ select case when tourbillon.is_paused_1(p_meta) operator(pg_catalog.=) tourbillon.is_paused_1(p_of) then p_meta
  when tourbillon.is_paused_1(p_of) then pg_catalog.jsonb_set(p_meta, '{cron,paused}', 'true')
  else p_meta operator(pg_catalog.#-) '{cron,paused}' end $$;

-- The number of the definition of a schedule. One that is no number counts as 0.
create function tourbillon.revision_1(p_meta jsonb) returns numeric
language sql immutable security invoker
set search_path = pg_catalog, pg_temp
as $$ select case when jsonb_typeof(p_meta #> '{cron,revision}') = 'number' and p_meta #>> '{cron,revision}' ~ '^[0-9]{1,19}$'
  then (p_meta #>> '{cron,revision}')::numeric else 0 end $$;

-- The schedule of a meta with what is known of its last occurrence.
create function tourbillon.with_last_1(p_meta jsonb, p_last jsonb) returns jsonb
language sql immutable security invoker
set search_path = pg_catalog, pg_temp
as $$ select case when p_last is null then p_meta else jsonb_set(p_meta, '{cron,last}', p_last) end $$;

-- The meta of a timer of a schedule whose occurrence has ended.
create function tourbillon.ended_1(p_meta jsonb) returns jsonb
language sql immutable security invoker
set search_path = pg_catalog, pg_temp
as $$ select jsonb_set(p_meta, '{cron,last}', jsonb_build_object('at', p_meta #> '{cron,at}')) $$;

-- The number of the next dead letter: the time in microseconds, or one more than the greatest number that is
-- there. So no state of the tables makes it one that is taken. Further letters of the same transaction have the
-- numbers that follow. Only one transaction at a time numbers letters, and none waits for a row meanwhile.
create function tourbillon.letter_1() returns bigint
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_advisory_xact_lock(hashtextextended('tourbillon.dead', 0));
  -- A statement of its own, which sees what the transaction before has committed.
  return (select greatest((extract(epoch from clock_timestamp()) * 1000000)::bigint, max(d.id) + 1) from tourbillon.dead d);
end
$$;

-- Whether these are the tables that the process has opened: an error if not. Each statement of the crate asks
-- once, before it does anything.
create function tourbillon.same_1(p_identity bigint) returns boolean
language plpgsql stable security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_identity is distinct from (select m.identity from tourbillon.meta m) then
    raise exception using errcode = 'TB001', message = 'the tables of the timers were made anew, or are those of another database';
  end if;
  return true;
end
$$;

-- Announces the queues whose timers are due within two seconds.
create function tourbillon.ring_1(p_queue text[], p_action smallint[], p_delay interval[], p_at timestamptz[]) returns void
language sql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
  select pg_notify('tourbillon', r.queue) from (
    select distinct u.queue from unnest(p_queue, p_action, p_delay, p_at) u(queue, action, delay, at)
    where u.action <> 3 and (u.delay < interval '2 s' or u.at < clock_timestamp() + interval '2 s')) r
$$;

-- Actions: 0 schedule, 1 schedule if absent, 2 reschedule, 3 cancel, 4 declare a schedule.
-- Answers: 0 scheduled, 1 exists, 2 moved, 3 cancelled, 4 running, 5 not found, 6 locked by others.
create function tourbillon.write_1(
  p_queue text[], p_key text[], p_action smallint[], p_delay interval[], p_at timestamptz[],
  p_payload jsonb[], p_meta jsonb[], p_wait boolean, p_notify boolean, p_new boolean
) returns table (
  n bigint, answer smallint, due timestamptz, other timestamptz, shard smallint, running boolean, attempt int
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan set timezone = 'UTC'
as $$
#variable_conflict use_column
declare
  v_end constant timestamptz := '9999-12-31 23:59:59.999999+00';
  v_now timestamptz;
  v_locked boolean[];
  v_gen bigint;
  -- The nodes that have claimed some of the locked rows, and those of them that are not gone.
  v_holders bigint[];
  v_living bigint[] := '{}';
begin
  -- Both before the clock is read: marks rely on it. See `Horizon` and `Complete`.
  perform pg_current_xact_id();
  lock table tourbillon.timer in row exclusive mode;
  v_now := clock_timestamp();
  -- One for all rows: a generation must never come back for the same key, and no key is here twice.
  v_gen := tourbillon.generation_1();
  if 0 = any (p_action) or 1 = any (p_action) or 4 = any (p_action) then
    if not p_wait then
      -- Somebody else's insert of one of the keys must not hold up the others.
      perform set_config('lock_timeout', '20ms', true);
    end if;
    if p_notify then
      perform tourbillon.ring_1(p_queue, p_action, p_delay, p_at);
    end if;

    -- The short way, if all keys are new. If one of them is not, though the crate expected it (p_new), or
    -- since somebody else inserts it in the meantime, this fails with unique_violation, and the crate calls
    -- again.
    if not p_wait and 1 >= all (p_action) and (p_new or not exists (
      select from unnest(p_queue, p_key) u(queue, key)
      join tourbillon.timer t on t.queue = u.queue and t.key = u.key
    )) then
      return query
      with fresh as materialized (
        select u.n, u.queue, u.key, (hashtextextended(u.key, 0) & 63)::smallint as shard,
          least(v_end, case when u.at is null then v_now + u.delay else greatest(u.at, v_now) end) as due, u.payload, u.meta
        from unnest(p_queue, p_key, p_delay, p_at, p_payload, p_meta) with ordinality u(queue, key, delay, at, payload, meta, n)
      ), inserted as (
        insert into tourbillon.timer (queue, key, shard, due, planned, gen, bytes, payload, meta)
        select f.queue, f.key, f.shard, f.due, f.due, v_gen, tourbillon.bytes_1(f.payload, f.meta), f.payload, f.meta from fresh f
      )
      select f.n, 0::smallint, f.due, null::timestamptz, f.shard, false, 0 from fresh f;
      return;
    end if;

    insert into tourbillon.timer (queue, key, shard, due, planned, gen, bytes, payload, meta)
    select u.queue, u.key, (hashtextextended(u.key, 0) & 63)::smallint, w.due, w.due, v_gen,
      tourbillon.bytes_1(u.payload, u.meta), u.payload, u.meta
    from unnest(p_queue, p_key, p_action, p_delay, p_at, p_payload, p_meta) with ordinality u(queue, key, action, delay, at, payload, meta, n)
    cross join lateral (
      select least(v_end, case when u.at is null then v_now + u.delay else greatest(u.at, v_now) end) as due
    ) w
    where u.action in (0, 1, 4)
      -- Without this the insert would wait for whoever changes the row.
      and not exists (select from tourbillon.timer t where t.queue = u.queue and t.key = u.key)
    order by u.n
    on conflict do nothing;
  elsif p_notify then
    perform tourbillon.ring_1(p_queue, p_action, p_delay, p_at);
  end if;

  -- The rows that were inserted have the new generations, and no lock is needed for them.
  if p_wait then
    select array_agg(l.locked order by u.n), array_agg(distinct l.claim) filter (where l.claim is not null)
    into v_locked, v_holders
    from unnest(p_queue, p_key) with ordinality u(queue, key, n)
    left join lateral (
      select true as locked, t.claim from tourbillon.timer t
      where t.queue = u.queue and t.key = u.key and t.gen is distinct from v_gen for update
    ) l on true;
    -- Only this may have taken long. All rows of a call go by one reading of the clock: here there is
    -- one row, which was not inserted.
    v_now := clock_timestamp();
  else
    select array_agg(l.locked order by u.n), array_agg(distinct l.claim) filter (where l.claim is not null)
    into v_locked, v_holders
    from unnest(p_queue, p_key) with ordinality u(queue, key, n)
    left join lateral (
      select true as locked, t.claim from tourbillon.timer t
      where t.queue = u.queue and t.key = u.key and t.gen is distinct from v_gen for update skip locked
    ) l on true;
  end if;
  -- After the locks, and each node once: its row may have many dead versions.
  if v_holders is not null then
    v_living := array(select d.epoch from tourbillon.node d where d.epoch = any (v_holders) and d.gone is null);
  end if;

  return query
  with old as materialized (
    select u.n, u.queue, u.key, u.action, u.payload as new_payload, w.due as new_due,
      -- A schedule keeps what is known of its last occurrence. One that runs counts as ended. One that was cancelled
      -- was paused before that.
      case
        when u.action <> 4 or t.gen is null or not tourbillon.is_schedule_1(t.meta)
          or t.cancelled and (t.claim = any (v_living)) is not true then u.meta
        when t.claim is not null and t.claim = any (v_living) and not t.follows
          then tourbillon.with_pause_1(
            tourbillon.with_last_1(u.meta, jsonb_build_object('at', t.meta #> '{cron,at}')),
            case when not t.cancelled then t.meta end)
        else tourbillon.with_pause_1(tourbillon.with_last_1(u.meta, t.meta #> '{cron,last}'), t.meta) end as new_meta,
      u.action = 4 and tourbillon.is_schedule_1(t.meta) and (
        t.payload = u.payload
          and (t.meta -> 'cron') - '{at,offset,last,paused}'::text[] = (u.meta -> 'cron') - '{at,offset,last,paused}'::text[]
        or tourbillon.revision_1(u.meta) < tourbillon.revision_1(t.meta)
      ) as stays,
      t.shard, t.due, t.attempt, t.claimed, t.cancelled, t.follows,
      case
        when u.locked is null and t.gen = v_gen then 'new'
        when u.locked is null and (t.gen is not null or u.action in (0, 1, 4)) then 'locked'
        when t.gen is null then 'none'
        when t.claim is not null and t.claim = any (v_living) then 'held'
        when t.cancelled then 'ended'
        else 'free' end as standing
    from unnest(p_queue, p_key, p_action, p_delay, p_at, p_payload, p_meta, v_locked)
      with ordinality u(queue, key, action, delay, at, payload, meta, locked, n)
    cross join lateral (
      select least(v_end, case when u.at is null then v_now + u.delay else greatest(u.at, v_now) end) as due
    ) w
    left join lateral (
      select t.shard, t.due, t.gen, t.attempt, t.claim, t.claimed, t.cancelled, t.follows, t.payload, t.meta
      from tourbillon.timer t where t.queue = u.queue and t.key = u.key
    ) t on true
  ), decided as materialized (
    select o.n, o.queue, o.key, o.action, o.new_payload, o.new_meta, o.new_due, o.shard, o.due, o.attempt, o.claimed,
      o.follows, o.standing, o.stays,
      case
        when o.standing in ('new', 'locked', 'none') then 'keep'
        when o.standing = 'ended' then case when o.action in (0, 1, 4) then 'fresh' else 'delete' end
        when o.stays and not o.cancelled then 'keep'
        when o.standing = 'free' then (array['fresh', 'keep', 'move', 'delete', 'fresh'])[o.action + 1]
        else case o.action
          when 0 then 'follow'
          when 4 then 'follow'
          when 1 then 'keep'
          when 2 then case when o.follows then 'move next' else 'keep' end
          else case when o.cancelled then 'keep' else 'mark' end end
      end as change
    from old o
  ), changed as (
    update tourbillon.timer t set
      -- What followed a run that is cancelled now has no due time any more. The next poll shows the row to its node,
      -- which may not know that it holds it.
      due = case
        when d.action = 4 and d.change in ('fresh', 'follow') and tourbillon.is_paused_1(d.new_meta) then v_end
        when d.change <> 'mark' then d.new_due when t.follows then v_now else t.due end,
      planned = case when d.change <> 'mark' then d.new_due when t.follows then v_now else t.planned end,
      -- What followed the run of a gone node is a new timer.
      gen = case when d.change = 'fresh' or d.change = 'move' and t.follows then v_gen else t.gen end,
      attempt = case when d.change = 'fresh' or d.change = 'move' and t.follows then 0 else t.attempt end,
      fails = case when d.change in ('fresh', 'move') then 0 else t.fails end,
      crashes = case when d.change in ('fresh', 'move') then 0 else t.crashes end,
      claim = case when d.change in ('fresh', 'move') then null else t.claim end,
      claimed = case when d.change in ('fresh', 'move') then null else t.claimed end,
      cancelled = d.change = 'mark',
      follows = d.change in ('follow', 'move next'),
      bytes = case when d.change in ('fresh', 'follow') then tourbillon.bytes_1(d.new_payload, d.new_meta) else t.bytes end,
      payload = case when d.change in ('fresh', 'follow') then d.new_payload else t.payload end,
      meta = case when d.change in ('fresh', 'follow') then d.new_meta else t.meta end
    from decided d
    where t.queue = d.queue and t.key = d.key and d.change in ('fresh', 'move', 'follow', 'move next', 'mark')
  ), deleted as (
    delete from tourbillon.timer t using decided d
    where t.queue = d.queue and t.key = d.key and d.change = 'delete'
  )
  select d.n,
    (case
      when d.standing = 'locked' then 6
      when d.action = 0 or d.action = 4 and d.change <> 'keep' then 0
      when d.action = 4 then case when d.standing = 'new' then 0 else 1 end
      when d.action = 1 then case when d.standing in ('new', 'ended') then 0 else 1 end
      when d.standing in ('none', 'ended') then 5
      when d.action = 2 then case when d.standing = 'held' and not d.follows then 4 else 2 end
      when d.standing = 'held' then 4
      else 3 end)::smallint,
    -- The new due time; of a timer that is left or cancelled, its own.
    case
      when d.standing = 'new' then d.due
      when d.action = 0 or d.action = 4 and d.change <> 'keep' or d.action = 1 and d.standing = 'ended' or d.action = 2 then d.new_due
      else d.due end,
    -- The due time before; of a run, since when it has been claimed.
    case
      when d.standing = 'held' and (d.action = 3 or d.action = 2 and not d.follows) then d.claimed
      when (d.action in (0, 2) or d.action = 4 and d.change <> 'keep') and (d.standing = 'free' or d.standing = 'held' and d.follows) then d.due end,
    coalesce(d.shard, (hashtextextended(d.key, 0) & 63)::smallint),
    d.standing = 'held',
    d.attempt
  from decided d;
end
$$;

-- One call, which waits for whoever holds the row.
create function tourbillon.write_one_1(
  p_queue text, p_key text, p_action smallint, p_delay interval, p_at timestamptz, p_payload jsonb, p_meta jsonb, p_notify boolean
) returns table (
  answer smallint, due timestamptz, other timestamptz, shard smallint, running boolean, attempt int
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  loop
    select w.answer, w.due, w.other, w.shard, w.running, w.attempt
    into write_one_1.answer, write_one_1.due, write_one_1.other, write_one_1.shard, write_one_1.running, write_one_1.attempt
    from tourbillon.write_1(array[p_queue], array[p_key], array[p_action], array[p_delay], array[p_at],
      array[p_payload], array[p_meta], true, p_notify, false) w;
    -- Another transaction has inserted the row, or deleted it, between the lock and the insert.
    exit when write_one_1.answer <> 6;
  end loop;
  return next;
end
$$;

-- Why these payloads can't be stored, or null.
create function tourbillon.payload_errors_1(p_payload text[]) returns text[]
language plpgsql stable security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_errors text[] := '{}';
  v_payload text;
  v_error text;
  v_detail text;
begin
  foreach v_payload in array p_payload loop
    begin
      perform v_payload::jsonb;
      v_errors := array_append(v_errors, null);
    exception when others then
      get stacked diagnostics v_error = message_text, v_detail = pg_exception_detail;
      v_errors := array_append(v_errors, concat_ws(': ', v_error, nullif(v_detail, '')));
    end;
  end loop;
  return v_errors;
end
$$;

-- Kinds of rows: 0 the node (gone: n = 1), 1 a run (n: which of p_queue), 2 an adopted run (n: which of
-- p_adopt_queue), 3 a dead letter was written, 5 a run that must not be adopted any more (n: which of p_adopt_queue).
create function tourbillon.claim_1(
  p_epoch bigint, p_deadline timestamptz, p_queue text[], p_key text[], p_crash_limit int[],
  p_adopt_queue text[], p_adopt_key text[], p_adopt_gen bigint[], p_adopt_attempt int[]
) returns table (
  kind smallint, n bigint, at timestamptz, number bigint, gen bigint, attempt int, due timestamptz,
  planned timestamptz, fails int, crashes int, payload text, meta text
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  v_end constant timestamptz := '9999-12-31 23:59:59.999999+00';
  v_number bigint;
  v_now timestamptz;
  v_live boolean;
  v_paused text[];
  -- The rows that nobody has claimed: which of p_queue, and where they are.
  v_plain bigint[];
  v_plain_queue text[];
  v_plain_key text[];
  v_place tid[];
  -- Locked rows with a claim, the nodes of these claims, and those of them that are not gone.
  v_other bigint[];
  v_holders bigint[];
  v_living bigint[];
  v_gen bigint;
  v_letter bigint;
begin
  v_number := pg_current_xact_id()::text::bigint;
  lock table tourbillon.timer in row exclusive mode;
  select array_agg(u.n) filter (where l.plain), array_agg(u.queue) filter (where l.plain),
    array_agg(u.key) filter (where l.plain), array_agg(l.place) filter (where l.plain),
    array_agg(u.n) filter (where not l.plain), array_agg(distinct l.claim) filter (where not l.plain)
  into v_plain, v_plain_queue, v_plain_key, v_place, v_other, v_holders
  from unnest(p_queue, p_key) with ordinality u(queue, key, n)
  cross join lateral (
    select t.ctid as place, t.claim, t.claim is null as plain from tourbillon.timer t
    where t.queue = u.queue and t.key = u.key for update skip locked
  ) l;
  v_now := clock_timestamp();
  v_live := exists (select from tourbillon.node d where d.epoch = p_epoch and d.gone is null);
  return query select 0::smallint, (not v_live)::int::bigint, v_now, v_number, null::bigint, null::int,
    null::timestamptz, null::timestamptz, null::int, null::int, null::text, null::text;
  if not v_live or v_now >= p_deadline then
    return;
  end if;
  v_paused := array(select q.name from tourbillon.queue q where q.paused);

  -- The short way, by the place that the lock has found.
  return query
  update tourbillon.timer t set attempt = t.attempt + 1, claim = p_epoch, claimed = v_now
  from unnest(v_plain, v_plain_queue, v_plain_key, v_place) u(n, queue, key, place)
  where t.ctid = u.place and t.queue = u.queue and t.key = u.key
    and t.claim is null and t.due <= v_now and t.queue <> all (v_paused)
  returning 1::smallint, u.n, v_now, v_number, t.gen, t.attempt, t.due, t.planned, t.fails, t.crashes, t.payload::text, t.meta::text;

  -- What others had claimed.
  if v_other is not null then
  -- After the locks, and each node once: its row may have many dead versions.
  v_living := array(select d.epoch from tourbillon.node d where d.epoch = any (v_holders) and d.gone is null);
  if exists (
    select from unnest(p_queue, p_key, p_crash_limit) with ordinality u(queue, key, crash_limit, n)
    join tourbillon.timer t on t.queue = u.queue and t.key = u.key
    where u.n = any (v_other) and t.crashes + 1 >= u.crash_limit and not tourbillon.is_schedule_1(t.meta)
  ) then
    v_letter := tourbillon.letter_1();
  end if;
  v_gen := tourbillon.generation_1();
  return query
  with decided as materialized (
    select u.n, u.queue, u.key, t.due, t.planned, t.bytes, t.payload, t.meta,
      -- What followed a run is a new timer, and the crash was not its own.
      case when t.follows then v_gen else t.gen end as gen,
      case when t.follows then 0 else t.attempt end as attempt,
      case when t.follows then 0 else t.fails end as fails,
      case when t.follows then 0 else t.crashes + 1 end as crashes,
      case
        when t.cancelled then 'delete'
        -- Only a node knows how a schedule goes on. It gets the run, and gives it up without a start.
        when not t.follows and t.crashes + 1 >= u.crash_limit and not tourbillon.is_schedule_1(t.meta) then 'bury'
        when t.due <= v_now and not tourbillon.is_paused_1(t.meta) then 'run'
        else 'free' end as change
    from unnest(p_queue, p_key, p_crash_limit) with ordinality u(queue, key, crash_limit, n)
    cross join lateral (
      select t.due, t.planned, t.gen, t.attempt, t.fails, t.crashes, t.cancelled, t.follows, t.bytes, t.payload, t.meta
      from tourbillon.timer t where t.queue = u.queue and t.key = u.key
        and t.claim <> all (v_living)
    ) t
    where u.n = any (v_other) and u.queue <> all (v_paused)
  ), changed as (
    update tourbillon.timer t set
      due = case when d.change = 'free' and tourbillon.is_paused_1(d.meta) then v_end else t.due end,
      gen = d.gen,
      attempt = case d.change when 'run' then d.attempt + 1 else d.attempt end,
      fails = d.fails, crashes = d.crashes,
      claim = case d.change when 'run' then p_epoch end,
      claimed = case d.change when 'run' then v_now end,
      cancelled = false, follows = false
    from decided d
    where t.queue = d.queue and t.key = d.key and d.change in ('run', 'free')
  ), deleted as (
    delete from tourbillon.timer t using decided d
    where t.queue = d.queue and t.key = d.key and d.change in ('delete', 'bury')
  ), buried as (
    insert into tourbillon.dead (id, queue, key, gen, planned, at, attempt, fails, crashes, error, bytes, payload, meta)
    select v_letter + row_number() over (order by d.n) - 1,
      d.queue, d.key, d.gen, d.planned, v_now, d.attempt, d.fails, d.crashes,
      format('the process that ran it ended %s times during the run', d.crashes), d.bytes, d.payload, d.meta
    from decided d where d.change = 'bury'
  )
  select case d.change when 'run' then 1::smallint else 3::smallint end, d.n, v_now, v_number, d.gen, d.attempt + 1,
    d.due, d.planned, d.fails, d.crashes, case d.change when 'run' then d.payload::text end, d.meta::text
  from decided d where d.change in ('run', 'bury');
  end if;

  if cardinality(p_adopt_queue) = 0 then
    return;
  end if;
  return query
  select case when t.over then 5::smallint else 2::smallint end, u.n, v_now, v_number, t.gen, t.attempt, t.due, t.planned,
    t.fails, t.crashes, case when not t.over then t.payload::text end, t.meta::text
  from unnest(p_adopt_queue, p_adopt_key, p_adopt_gen, p_adopt_attempt) with ordinality u(queue, key, gen, attempt, n)
  cross join lateral (
    select t.gen, t.attempt, t.due, t.planned, t.fails, t.crashes, t.payload, t.meta, t.cancelled or t.follows as over
    from tourbillon.timer t
    where t.queue = u.queue and t.key = u.key and t.claim = p_epoch and t.gen = u.gen and t.attempt = u.attempt
  ) t;
end
$$;

-- Outcomes: 0 done, 1 again, 2 retry, 3 dead, 4 give back, 5 step to an occurrence that is due, with the claim. A timer with a schedule is never deleted by its end:
-- it goes on to p_next with p_meta, or without them is due at once, with the mark that its occurrence has ended.
-- Answers: 0 ended, 1 waits, 2 buried, 3 fenced, 4 locked by others, 6 stepped.
create function tourbillon.settle_1(
  p_epoch bigint, p_queue text[], p_key text[], p_gen bigint[], p_attempt int[], p_outcome smallint[],
  p_delay interval[], p_error text[], p_next timestamptz[], p_meta jsonb[], p_wait boolean
) returns table (n bigint, answer smallint)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set jit = off set plan_cache_mode = force_generic_plan set timezone = 'UTC'
as $$
#variable_conflict use_column
declare
  v_end constant timestamptz := '9999-12-31 23:59:59.999999+00';
  v_now timestamptz;
  v_live boolean;
  v_gen bigint;
  v_letter bigint;
  -- The runs that succeeded, and leave nothing behind: which of p_queue, and where their rows are.
  v_plain bigint[];
  v_plain_queue text[];
  v_plain_key text[];
  v_place tid[];
  -- The other rows that were locked.
  v_locked bigint[];
begin
  perform pg_current_xact_id();
  lock table tourbillon.timer in row exclusive mode;
  if p_wait then
    select array_agg(u.n) into v_locked
    from unnest(p_queue, p_key) with ordinality u(queue, key, n)
    cross join lateral (
      select from tourbillon.timer t
      where t.queue = u.queue and t.key = u.key for update
    ) l;
  else
    select array_agg(u.n) filter (where l.plain), array_agg(u.queue) filter (where l.plain),
      array_agg(u.key) filter (where l.plain), array_agg(l.place) filter (where l.plain),
      array_agg(u.n) filter (where not l.plain)
    into v_plain, v_plain_queue, v_plain_key, v_place, v_locked
    from unnest(p_queue, p_key, p_gen, p_attempt, p_outcome) with ordinality u(queue, key, gen, attempt, outcome, n)
    cross join lateral (
      select t.ctid as place,
        coalesce(u.outcome = 0 and t.claim = p_epoch and t.gen = u.gen and t.attempt = u.attempt and not t.follows
          and (t.meta is null or not tourbillon.is_schedule_1(t.meta)), false) as plain
      from tourbillon.timer t
      where t.queue = u.queue and t.key = u.key for update skip locked
    ) l;
  end if;
  v_now := clock_timestamp();
  v_live := exists (select from tourbillon.node d where d.epoch = p_epoch and d.gone is null);

  -- The short way, by the place that the lock has found.
  if v_live and v_plain is not null then
    return query
    delete from tourbillon.timer t using unnest(v_plain, v_plain_queue, v_plain_key, v_place) u(n, queue, key, place)
    where t.ctid = u.place and t.queue = u.queue and t.key = u.key and t.claim = p_epoch
    returning u.n, 0::smallint;
    if cardinality(v_plain) = cardinality(p_key) then
      return;
    end if;
  end if;
  v_gen := tourbillon.generation_1();
  if 3 = any (p_outcome) then
    v_letter := tourbillon.letter_1();
  end if;

  return query
  with old as materialized (
    select u.n, u.queue, u.key, u.outcome, u.error,
      least(v_end, v_now + u.delay) as later,
      t.due, t.planned, t.gen, t.attempt, t.fails, t.crashes, t.bytes, t.payload, t.meta,
      coalesce(u.next, v_now) as next, tourbillon.is_paused_1(t.meta) as paused,
      -- It may have been paused or resumed since it was claimed.
      case when tourbillon.is_schedule_1(t.meta)
        then tourbillon.with_pause_1(coalesce(u.meta, tourbillon.ended_1(t.meta)), t.meta) end as next_meta,
      case
        when not v_live or t.gen is null then 'fenced'
        when u.n <> all (coalesce(v_locked, '{}')) then 'locked'
        when t.claim = p_epoch and t.gen = u.gen and t.attempt = u.attempt then case
          when t.follows then 'follow'
          when t.cancelled then 'delete'
          when u.outcome in (0, 3) and tourbillon.is_schedule_1(t.meta) then
            case u.outcome when 0 then 'next' else 'bury next' end
          -- The clock may have been set back since the claim, and the schedule paused.
          when u.outcome = 5 and u.meta is not null and tourbillon.is_schedule_1(t.meta) then
            case when u.next > v_now or tourbillon.is_paused_1(t.meta) then 'next' else 'step' end
          when u.outcome = 0 then 'delete'
          when u.outcome = 1 then 'again'
          when u.outcome = 2 then 'retry'
          when u.outcome = 3 then 'bury'
          else 'give back' end
        else 'fenced' end as change
    from unnest(p_queue, p_key, p_gen, p_attempt, p_outcome, p_delay, p_error, p_next, p_meta)
      with ordinality u(queue, key, gen, attempt, outcome, delay, error, next, meta, n)
    left join lateral (
      select t.due, t.planned, t.gen, t.attempt, t.fails, t.crashes, t.claim, t.cancelled, t.follows, t.bytes, t.payload, t.meta
      from tourbillon.timer t where t.queue = u.queue and t.key = u.key
    ) t on true
    where not v_live or v_plain is null or u.n <> all (v_plain)
  ), changed as (
    update tourbillon.timer t set
      -- The planned time stays, for whoever asks how late the run is.
      due = case
        when o.change = 'follow' then greatest(t.due, v_now)
        when o.paused then v_end
        when o.change = 'step' then o.next
        when o.change = 'give back' then greatest(t.due, o.later)
        when o.change in ('next', 'bury next') then greatest(o.next, v_now)
        else o.later end,
      planned = case when o.change = 'again' then o.later when o.change in ('next', 'bury next', 'step') then o.next else t.planned end,
      gen = case when o.change in ('follow', 'again', 'next', 'bury next') then v_gen else t.gen end,
      attempt = case when o.change in ('follow', 'again', 'next', 'bury next') then 0 else t.attempt end,
      fails = case o.change when 'retry' then t.fails + 1 when 'give back' then t.fails when 'step' then t.fails else 0 end,
      crashes = case when o.change in ('follow', 'again', 'next', 'bury next') then 0 else t.crashes end,
      bytes = case when o.change in ('next', 'bury next', 'step') then tourbillon.bytes_1(t.payload, o.next_meta) else t.bytes end,
      meta = case when o.change in ('next', 'bury next', 'step') then o.next_meta else t.meta end,
      claim = case o.change when 'step' then t.claim end, claimed = case o.change when 'step' then t.claimed end,
      cancelled = false, follows = false
    from old o
    where t.queue = o.queue and t.key = o.key
      and o.change in ('follow', 'again', 'retry', 'give back', 'next', 'bury next', 'step')
  ), deleted as (
    delete from tourbillon.timer t using old o
    where t.queue = o.queue and t.key = o.key and o.change in ('delete', 'bury')
  ), buried as (
    insert into tourbillon.dead (id, queue, key, gen, planned, at, attempt, fails, crashes, error, bytes, payload, meta)
    select v_letter + row_number() over (order by o.n) - 1, o.queue,
      -- An occurrence is a timer of its own, beside its schedule.
      case o.change when 'bury' then o.key else concat(o.key, '@', o.meta #>> '{cron,at}') end,
      o.gen, o.planned, v_now, o.attempt, o.fails + 1, o.crashes, coalesce(o.error, ''), o.bytes, o.payload,
      case o.change when 'bury' then o.meta
        else jsonb_set(o.meta, '{cron}', jsonb_build_object('at', o.meta #> '{cron,at}')) end
    from old o where o.change in ('bury', 'bury next')
  )
  select o.n, (case
    when o.change in ('follow', 'delete') then 0
    when o.change in ('again', 'retry', 'give back', 'next') then 1
    when o.change in ('bury', 'bury next') then 2
    when o.change = 'fenced' then 3
    when o.change = 'step' then 6
    else 4 end)::smallint
  from old o;
end
$$;

-- The three functions below do the same as the ones without `each`, row by row, for a batch that has failed. A row
-- that can't be written, since a trigger or a constraint of the user's refuses it, then fails alone. Its answer has the
-- code and the text of the error. The table is locked here: a row that fails gives back the locks that it took.

-- Answers: those of `write_1`, and 7: refused.
create function tourbillon.write_each_1(
  p_queue text[], p_key text[], p_action smallint[], p_delay interval[], p_at timestamptz[],
  p_payload jsonb[], p_meta jsonb[], p_notify boolean
) returns table (
  n bigint, answer smallint, due timestamptz, other timestamptz, shard smallint, running boolean, attempt int,
  code text, error text
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  -- Locked rows cost 20 ms each, so the call passes over all others once there are many.
  v_patience int := 8;
  v_schema text;
  v_constraint text;
begin
  perform pg_current_xact_id();
  lock table tourbillon.timer in row exclusive mode;
  for i in 1 .. cardinality(p_key) loop
    n := i;
    answer := 6;
    code := null;
    error := null;
    if v_patience > 0 then
      begin
        select w.answer, w.due, w.other, w.shard, w.running, w.attempt
        into write_each_1.answer, write_each_1.due, write_each_1.other, write_each_1.shard, write_each_1.running,
          write_each_1.attempt
        from tourbillon.write_1(p_queue[i:i], p_key[i:i], p_action[i:i], p_delay[i:i], p_at[i:i], p_payload[i:i],
          p_meta[i:i], false, p_notify, false) w;
        -- Now, and not at the commit, where the error would be that of all rows.
        set constraints all immediate;
      exception when others then
        get stacked diagnostics v_schema = schema_name, v_constraint = constraint_name;
        if sqlstate in ('55P03', '40001', '40P01')
          -- Somebody else has inserted the key.
          or sqlstate = '23505' and v_schema = 'tourbillon' and v_constraint = 'timer_pkey' then
          answer := 6;
          v_patience := v_patience - 1;
        else
          answer := 7;
          code := sqlstate;
          error := sqlerrm;
        end if;
      end;
    end if;
    return next;
  end loop;
end
$$;

-- Kinds of rows: those of `claim_1`, and 4: refused.
create function tourbillon.claim_each_1(
  p_epoch bigint, p_deadline timestamptz, p_queue text[], p_key text[], p_crash_limit int[],
  p_adopt_queue text[], p_adopt_key text[], p_adopt_gen bigint[], p_adopt_attempt int[]
) returns table (
  kind smallint, n bigint, at timestamptz, number bigint, gen bigint, attempt int, due timestamptz,
  planned timestamptz, fails int, crashes int, payload text, meta text, code text, error text
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_row record;
  v_kind smallint;
begin
  perform pg_current_xact_id();
  lock table tourbillon.timer in row exclusive mode;
  -- The node, and the rows to adopt, of which nothing is written.
  return query
  select c.kind, c.n, c.at, c.number, c.gen, c.attempt, c.due, c.planned, c.fails, c.crashes, c.payload, c.meta, null::text, null::text
  from tourbillon.claim_1(p_epoch, p_deadline, '{}', '{}', '{}', p_adopt_queue, p_adopt_key, p_adopt_gen, p_adopt_attempt) c;
  for i in 1 .. cardinality(p_key) loop
    begin
      select c.kind, c.at, c.number, c.gen, c.attempt, c.due, c.planned, c.fails, c.crashes, c.payload, c.meta into v_row
      from tourbillon.claim_1(p_epoch, p_deadline, p_queue[i:i], p_key[i:i], p_crash_limit[i:i], '{}', '{}', '{}', '{}') c
      where c.kind <> 0;
      v_kind := v_row.kind;
      set constraints all immediate;
      if v_kind is not null then
        return query
        select v_kind, i::bigint, v_row.at, v_row.number, v_row.gen, v_row.attempt, v_row.due, v_row.planned, v_row.fails,
          v_row.crashes, v_row.payload, v_row.meta, null::text, null::text;
      end if;
    exception when others then
      -- A row that is locked is passed over.
      if sqlstate not in ('55P03', '40001', '40P01') then
        return query
        select 4::smallint, i::bigint, null::timestamptz, null::bigint, null::bigint, null::int, null::timestamptz,
          null::timestamptz, null::int, null::int, null::text, null::text, sqlstate, sqlerrm;
      end if;
    end;
  end loop;
end
$$;

-- Answers: those of `settle_1`, and 5: refused.
create function tourbillon.settle_each_1(
  p_epoch bigint, p_queue text[], p_key text[], p_gen bigint[], p_attempt int[], p_outcome smallint[],
  p_delay interval[], p_error text[], p_next timestamptz[], p_meta jsonb[]
) returns table (n bigint, answer smallint, code text, error text)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform pg_current_xact_id();
  lock table tourbillon.timer in row exclusive mode;
  for i in 1 .. cardinality(p_key) loop
    n := i;
    code := null;
    error := null;
    begin
      select s.answer into settle_each_1.answer
      from tourbillon.settle_1(p_epoch, p_queue[i:i], p_key[i:i], p_gen[i:i], p_attempt[i:i], p_outcome[i:i],
        p_delay[i:i], p_error[i:i], p_next[i:i], p_meta[i:i], false) s;
      set constraints all immediate;
    exception when others then
      if sqlstate in ('55P03', '40001', '40P01') then
        answer := 4;
      else
        answer := 5;
        code := sqlstate;
        error := sqlerrm;
      end if;
    end;
    return next;
  end loop;
end
$$;

-- Pauses or resumes a schedule. False: there is none with this key. A run that is under way goes on.
create function tourbillon.pause_1(p_queue text, p_key text, p_paused boolean, p_notify boolean) returns boolean
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
set enable_seqscan = off set enable_bitmapscan = off
as $$
declare
  v_end constant timestamptz := '9999-12-31 23:59:59.999999+00';
  v_now timestamptz;
  v_meta jsonb;
  v_due timestamptz;
begin
  perform pg_current_xact_id();
  lock table tourbillon.timer in row exclusive mode;
  select t.meta into v_meta from tourbillon.timer t
  where t.queue = p_queue and t.key = p_key and not t.cancelled and tourbillon.is_schedule_1(t.meta) for update;
  if not found then
    return false;
  end if;
  if tourbillon.is_paused_1(v_meta) = p_paused then
    return true;
  end if;
  v_now := clock_timestamp();
  v_meta := case when p_paused then jsonb_set(v_meta, '{cron,paused}', 'true') else v_meta #- '{cron,paused}' end;
  update tourbillon.timer t set
    meta = v_meta, bytes = tourbillon.bytes_1(t.payload, v_meta),
    -- The planned time stays, and is the due time again when the schedule is resumed.
    due = case
      -- The end of the run looks at the mark.
      when t.claim is not null and not t.follows then t.due
      when p_paused then v_end
      when t.due = v_end then greatest(t.planned, v_now)
      else t.due end
  where t.queue = p_queue and t.key = p_key
  returning t.due into v_due;
  if p_notify and not p_paused then
    perform tourbillon.ring_1(array[p_queue], array[2::smallint], array[null::interval], array[v_due]);
  end if;
  return true;
end
$$;

-- Answers: 0 revived, 1 exists, 2 not found.
create function tourbillon.revive_1(p_id bigint, p_notify boolean)
returns table (answer smallint, queue text, key text)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  v_queue text;
  v_key text;
  v_payload jsonb;
  v_meta jsonb;
  v_answer smallint;
begin
  select d.queue, d.key, d.payload, d.meta into v_queue, v_key, v_payload, v_meta
  from tourbillon.dead d where d.id = p_id for update;
  if not found then
    return query select 2::smallint, null::text, null::text;
    return;
  end if;
  select w.answer into v_answer
  from tourbillon.write_one_1(v_queue, v_key, 1::smallint, interval '0', null, v_payload, v_meta, p_notify) w;
  if v_answer = 0 then
    delete from tourbillon.dead d where d.id = p_id;
  end if;
  return query select v_answer, v_queue, v_key;
end
$$;

-- Whether another node was declared gone. Both rows are locked in one order, so that two nodes that
-- declare each other gone wait for each other once, and one of them fails.
create function tourbillon.declare_gone_1(p_asking bigint, p_epoch bigint, p_beat bigint) returns boolean
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  perform from tourbillon.node d where d.epoch in (p_asking, p_epoch) order by d.epoch for update;
  update tourbillon.node d set gone = clock_timestamp()
  where d.epoch = p_epoch and d.epoch <> p_asking and d.beat = p_beat and d.gone is null
    and exists (select from tourbillon.node a where a.epoch = p_asking and a.gone is null);
  return found;
end
$$;

-- Functions of tourbillon-leases, version 1. Those with a number behind their names are called by the crate alone.
--
-- Whoever locks several rows does so in the order of their names. The clock is read after the lock. What changes a
-- row that is held locks it `for no key update`, which does not wait for a transaction that has called `guard`. What
-- grants a name locks it `for update`, and so does wait.

-- Begins the use of the tables by a connection, and returns their identity. If the server is another one than before,
-- or was promoted, or the tables were restored from a dump, or the caller knows that data were lost, nothing is granted
-- for the longest lease.
create function tourbillon_leases.open_1(p_longest bigint, p_lost boolean) returns bigint
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
-- Others who connect hold the row until their commit is on disk.
set lock_timeout = '1s'
as $$
declare
  v_system constant bigint := (select c.system_identifier from pg_control_system() c);
  -- A promotion begins another timeline.
  v_timeline constant text := left(pg_walfile_name(pg_current_wal_lsn()), 8);
  -- What a dump restores has another table, or lies in another database.
  v_database constant oid := (select d.oid from pg_database d where d.datname = current_database());
  v_table oid;
  v_meta tourbillon_leases.meta;
  v_longest bigint;
  v_now timestamptz;
begin
  select m.* into strict v_meta from tourbillon_leases.meta m;
  select m.tableoid into strict v_table from tourbillon_leases.meta m;
  if not p_lost and v_meta.longest >= p_longest and v_meta.system is not distinct from v_system
    and v_meta.timeline is not distinct from v_timeline and v_meta.of_database is not distinct from v_database
    and v_meta.of_table is not distinct from v_table then
    return v_meta.identity;
  end if;
  select m.* into strict v_meta from tourbillon_leases.meta m for update;
  v_now := clock_timestamp();
  v_longest := greatest(v_meta.longest, p_longest);
  update tourbillon_leases.meta m set
    system = v_system,
    timeline = v_timeline,
    of_database = v_database,
    of_table = v_table,
    longest = v_longest,
    opens = case
      -- Tables that nobody has used yet have no server, and nothing was lost.
      when p_lost or v_meta.system <> v_system or v_meta.timeline <> v_timeline
        or v_meta.of_database <> v_database or v_meta.of_table <> v_table
        then v_now + v_longest * interval '1 microsecond'
      -- The loss before was to be waited out for a shorter lease.
      when v_meta.opens > v_now then v_meta.opens + (v_longest - v_meta.longest) * interval '1 microsecond'
      else v_meta.opens end
  where m.one;
  return v_meta.identity;
end
$$;

-- For how many us nothing is granted yet. No wait is longer than the longest lease, also if the clock was set back: then
-- the rest is cut.
create function tourbillon_leases.wait_1() returns bigint
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_us constant interval := '1 microsecond';
  v_meta tourbillon_leases.meta;
  v_rest interval;
begin
  select m.* into strict v_meta from tourbillon_leases.meta m;
  v_rest := v_meta.opens - clock_timestamp();
  if v_rest is null then
    return 0;
  end if;
  if v_rest <= interval '0' or v_rest > v_meta.longest * v_us then
    -- A moment that has passed is forgotten: a clock that is set back later must not bring it back. Whoever else does
    -- this does it for all.
    perform from tourbillon_leases.meta m for no key update skip locked;
    if found then
      update tourbillon_leases.meta m set opens = case
        when m.opens > clock_timestamp() then least(m.opens, clock_timestamp() + m.longest * v_us) end;
    end if;
  end if;
  return greatest(least(v_meta.longest, ceil(extract(epoch from v_rest) * 1000000)::bigint), 0);
end
$$;

-- Acquires names. p_longest is the longest lease of the store, or 0 if it may differ from that of others. p_guarded
-- says whether a server may have lost what it has committed. Times are in us.
-- Answers: 0 held, and how long; 1 granted, and the token; 2 nothing is granted yet, and how long; 3 other stores have
-- a longer longest lease, and which.
create function tourbillon_leases.acquire_1(
  p_name text[], p_owner text[], p_secret text[], p_lease bigint[], p_waits boolean[], p_waited bigint[],
  p_data text[], p_store text, p_longest bigint, p_guarded boolean,
  out answers smallint[], out numbers bigint[]
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
-- It waits for nobody but another one that grants a new name, until the commit of that one is on disk.
set lock_timeout = '1s'
as $$
declare
  v_us constant interval := '1 microsecond';
  -- After so long a caller is due.
  v_turn constant bigint := 20000;
  v_table oid;
  v_longest bigint;
  v_opens timestamptz;
  v_wait bigint := 0;
  v_order int[];
  i int;
  v_tries int;
  v_row tourbillon_leases.lease;
  v_is_new boolean;
  v_held boolean;
  v_reserved boolean;
  v_notes boolean;
  v_announces boolean;
  v_cuts boolean;
  v_now timestamptz;
  v_since timestamptz;
  v_ends timestamptz;
  v_token bigint;
begin
  answers := array_fill(0::smallint, array[cardinality(p_name)]);
  numbers := array_fill(0::bigint, array[cardinality(p_name)]);
  select m.longest, m.opens, nullif(m.tableoid, m.of_table) into strict v_longest, v_opens, v_table
  from tourbillon_leases.meta m;
  -- The tables were restored while this connection was open.
  if v_table is not null and cardinality(p_name) > 0 then
    perform tourbillon_leases.open_1(p_longest, false);
    select m.longest, m.opens into strict v_longest, v_opens from tourbillon_leases.meta m;
  end if;
  if p_guarded and v_opens is not null then
    v_wait := tourbillon_leases.wait_1();
  end if;
  -- Most calls have one name, and each statement less is a tenth of their time.
  v_order := array[1];
  if cardinality(p_name) <> 1 then
    v_order := array(select u.n::int from unnest(p_name) with ordinality u(name, n) order by u.name collate "C", u.n);
  end if;
  foreach i in array v_order loop
    v_tries := 0;
    <<tries>>
    loop
      v_tries := v_tries + 1;
      -- Somebody else has locked the row, or others are quicker again and again. So the caller asks soon, and less often
      -- once it has waited for long: a transaction that has called `guard` may go on for any time.
      numbers[i] := least(greatest(p_waited[i] / 10, 20000), 100000);
      exit tries when v_tries > 6;
      select l.* into v_row from tourbillon_leases.lease l where l.name = p_name[i];
      v_is_new := not found;
      v_now := clock_timestamp();
      v_held := v_row.owner is not null and v_row.ends > v_now and v_row.secret is distinct from p_secret[i];
      -- If the clock was set back, a reservation may last longer than any release makes it. Then it does not count.
      v_reserved := v_row.owner is null and v_row.waiter is not null and v_row.ends > v_now
        and v_row.ends <= v_now + interval '25 ms' and (p_waited[i] < v_turn or v_row.waiter <> p_store);
      if v_held or v_reserved then
        -- The release is announced, and the next turn goes to the store whose caller has waited longest. A difference
        -- of less than 5 ms, which may come from reading the clock twice, is not written.
        v_since := v_now - p_waited[i] * v_us;
        v_notes := p_waits[i] and v_held and (v_row.since is null or v_since + interval '5 ms' <= v_row.since);
        -- The reservation is another store's. So the next holder's release is announced for this caller.
        v_announces := p_waits[i] and v_reserved and not v_row.announce;
        -- If the clock was set back, more than the whole lease is left. The holder relies on its lease for at most one
        -- lease, counted from a renewal in the past. So the rest can be cut to one lease.
        v_cuts := v_held and v_row.ends > v_now + v_row.length;
        if v_notes or v_announces or v_cuts then
          -- Nobody waits here for a row that somebody has locked: other calls wait behind this one. The caller asks
          -- again soon.
          perform from tourbillon_leases.lease l where l.name = p_name[i] for no key update skip locked;
          exit tries when not found;
          -- The row may be another one by now, and the clock has gone on.
          update tourbillon_leases.lease l set
            waiter = case when v_notes then p_store else l.waiter end,
            since = case when v_notes then v_since else l.since end,
            announce = l.announce or v_announces,
            ends = case when l.owner is null then l.ends else least(l.ends, clock_timestamp() + l.length) end
          where l.name = p_name[i] and l.token = v_row.token and (l.owner is not null) = v_held;
          continue tries when not found;
          if v_cuts then
            v_row.ends := v_now + v_row.length;
          end if;
        end if;
        numbers[i] := ceil(extract(epoch from v_row.ends - v_now) * 1000000)::bigint;
        exit tries;
      end if;
      if p_longest > 0 and p_longest < v_longest then
        answers[i] := 3;
        numbers[i] := v_longest;
        exit tries;
      end if;
      if v_wait > 0 then
        answers[i] := 2;
        numbers[i] := v_wait;
        exit tries;
      end if;
      if v_is_new then
        v_token := (extract(epoch from v_now) * 1000000)::bigint;
        insert into tourbillon_leases.lease (name, owner, secret, token, ends, length, data)
        values (p_name[i], p_owner[i], p_secret[i], v_token, v_now + p_lease[i] * v_us, p_lease[i] * v_us,
          nullif(p_data[i], ''))
        on conflict (name) do nothing;
        -- Somebody else was quicker.
        continue tries when not found;
      else
        -- A transaction that has called `guard` may go on for long, and nobody else on this connection should wait for
        -- it. Other locks of a row last for a moment.
        select l.* into v_row from tourbillon_leases.lease l where l.name = p_name[i] for update skip locked;
        if not found then
          exit tries when v_tries > 1 or cardinality(p_name) > 1;
          perform pg_sleep(0.001);
          continue tries;
        end if;
        v_now := clock_timestamp();
        continue tries when v_row.owner is not null and v_row.ends > v_now
          and v_row.secret is distinct from p_secret[i];
        continue tries when v_row.owner is null and v_row.waiter is not null and v_row.ends > v_now
          and v_row.ends <= v_now + interval '25 ms' and (p_waited[i] < v_turn or v_row.waiter <> p_store);
        v_ends := v_now + p_lease[i] * v_us;
        if v_row.owner is not null and v_row.ends > v_now then
          -- The same secret again: the call was repeated, or arrives late. It must not shorten what was extended
          -- meanwhile, nor change the token by which a transaction of the holder's is fenced.
          v_token := v_row.token;
          update tourbillon_leases.lease l set
            ends = greatest(v_row.ends, v_ends),
            length = case when v_row.ends > v_ends then v_row.length else p_lease[i] * v_us end
          where l.name = p_name[i];
        else
          v_token := greatest((extract(epoch from v_now) * 1000000)::bigint, v_row.token + 1);
          update tourbillon_leases.lease l set
            owner = p_owner[i],
            secret = p_secret[i],
            token = v_token,
            ends = v_ends,
            length = p_lease[i] * v_us,
            holds = 1,
            data = nullif(p_data[i], ''),
            waiter = null,
            since = null,
            -- Others may have waited beside the one whose wait is forgotten here.
            announce = v_row.announce or v_row.owner is not null and v_row.waiter is not null,
            ticket = null,
            detached = null,
            terms = null
          where l.name = p_name[i];
        end if;
      end if;
      answers[i] := 1;
      numbers[i] := v_token;
      exit tries;
    end loop;
  end loop;
  -- A note of a caller that waits may be lost.
  if not 1 = any (answers) then
    perform set_config('synchronous_commit', 'off', true);
  end if;
end
$$;

-- Renews leases. Tells of each whether it is held with this secret. If p_skips, it waits for no row that somebody has
-- locked, and tells null of what such a row seems to hold.
--
-- Here and below, a limit that the planner does not know makes it expect few rows. So it looks each of them up by the
-- index, also if the table was small when the plan was made.
create function tourbillon_leases.renew_1(
  p_name text[], p_secret text[], p_lease bigint[], p_holds int[], p_never_shortens boolean[], p_skips boolean
) returns boolean[]
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_free text[];
  v_renewed boolean[];
begin
  if p_skips then
    v_free := array(
      select l.name from tourbillon_leases.lease l where l.name = any (p_name)
      order by l.name for no key update skip locked
    );
  end if;
  with asked as materialized (
    select u.n, u.name, u.secret, u.lease * interval '1 microsecond' as lease, u.holds, u.never_shortens
    from unnest(p_name, p_secret, p_lease, p_holds, p_never_shortens)
      with ordinality u(name, secret, lease, holds, never_shortens, n)
    order by u.name collate "C", u.n limit cardinality(p_name)
  ), renewed as (
    -- After it has waited for a row that was changed meanwhile, the server computes all of this again. A row that was
    -- only locked is as it was.
    update tourbillon_leases.lease l set
      ends = case when a.never_shortens then greatest(l.ends, clock_timestamp() + a.lease)
        else clock_timestamp() + a.lease end,
      length = case when a.never_shortens and l.ends > clock_timestamp() + a.lease then l.length else a.lease end,
      holds = a.holds
    from asked a
    where l.name = a.name and l.secret = a.secret and l.ends > clock_timestamp()
      and (not p_skips or l.name = any (v_free))
    returning l.name, l.secret
  )
  select array_agg(
    case
      when (a.name, a.secret) in (select d.name, d.secret from renewed d) then true
      when p_skips and a.name <> all (v_free)
        and exists (select from tourbillon_leases.lease l where l.name = a.name and l.secret = a.secret) then null
      else false end
    order by a.n
  ) into v_renewed
  from asked a;
  return v_renewed;
end
$$;

-- Releases names, or shortens their leases to a rest, in us. Tells of each whether it was held with this secret. p_skips
-- is that of renew_1. Without p_announces nobody is told, which needs no place in the queue of announcements.
create function tourbillon_leases.release_1(
  p_name text[], p_secret text[], p_rest bigint[], p_store text, p_skips boolean, p_announces boolean
) returns boolean[]
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_now timestamptz;
  v_free text[];
  v_released boolean[];
  v_row tourbillon_leases.lease;
  v_is_due boolean;
begin
  -- If this is lost, a name is locked for the rest of a lease. So nobody waits for the disk.
  perform set_config('synchronous_commit', 'off', true);
  -- The usual call, in fewer steps than the general form below.
  if cardinality(p_name) = 1 and p_rest[1] = 0 and p_announces and not p_skips then
    select l.* into v_row from tourbillon_leases.lease l
    where l.name = p_name[1] and l.secret = p_secret[1] for no key update;
    if not found then
      return array[false];
    end if;
    v_now := clock_timestamp();
    if v_row.waiter is not null or v_row.announce then
      perform pg_notify('tourbillon_leases', p_store || ' ' || v_row.name);
    end if;
    v_is_due := v_row.ends > v_now and v_row.waiter is not null and v_now - v_row.since >= interval '20 ms';
    update tourbillon_leases.lease l set
      owner = null,
      secret = null,
      ends = case
        when v_is_due then v_now + least(greatest((v_now - l.since) / 4, interval '5 ms'), interval '25 ms')
        else least(l.ends, v_now) end,
      data = null,
      waiter = case when v_is_due then l.waiter end,
      since = null,
      announce = false,
      ticket = null,
      detached = null,
      terms = null
    where l.name = v_row.name;
    return array[v_row.ends > v_now];
  end if;
  if p_skips then
    v_free := array(
      select l.name from tourbillon_leases.lease l where l.name = any (p_name)
      order by l.name for no key update skip locked
    );
  else
    perform from tourbillon_leases.lease l where l.name = any (p_name) order by l.name for no key update;
  end if;
  v_now := clock_timestamp();
  if p_announces then
    perform pg_notify('tourbillon_leases', p_store || ' ' || l.name)
    from (select u.name, u.secret from unnest(p_name, p_secret) u(name, secret) limit cardinality(p_name)) a
    join tourbillon_leases.lease l on l.name = a.name and l.secret = a.secret
    where (l.waiter is not null or l.announce) and (not p_skips or l.name = any (v_free));
  end if;
  with asked as materialized (
    select u.n, u.name, u.secret, u.rest * interval '1 microsecond' as rest
    from unnest(p_name, p_secret, p_rest) with ordinality u(name, secret, rest, n)
    limit cardinality(p_name)
  ), found as materialized (
    select a.n, a.name, a.secret, a.rest, l.since,
      -- Of what is locked nothing is known.
      case when l.name is null or not p_skips or l.name = any (v_free) then coalesce(l.ends > v_now, false) end
        as in_time,
      coalesce(l.ends > v_now and a.rest > interval '0', false) as stays,
      coalesce(l.ends > v_now and l.waiter is not null and v_now - l.since >= interval '20 ms', false) as is_due
    from asked a
    left join tourbillon_leases.lease l on l.name = a.name and l.secret = a.secret
  ), changed as (
    update tourbillon_leases.lease l set
      -- What stays locked has no secret: a renewal that arrives later finds nothing.
      owner = case when f.stays then l.owner || ' (released)' end,
      secret = null,
      -- Reserved for a quarter of the longest wait, from 5 ms to 25 ms.
      ends = case
        when f.stays then v_now + f.rest
        when f.is_due then v_now + least(greatest((v_now - f.since) / 4, interval '5 ms'), interval '25 ms')
        else least(l.ends, v_now) end,
      length = case when f.stays then f.rest else l.length end,
      data = case when f.stays then l.data end,
      waiter = case when f.stays or f.is_due then l.waiter end,
      since = case when f.stays then l.since end,
      announce = false,
      ticket = null,
      detached = null,
      terms = null
    from found f
    where l.name = f.name and l.secret = f.secret and f.in_time is not null
  )
  select array_agg(f.in_time order by f.n) into v_released from found f;
  return v_released;
end
$$;

-- Ends the reservation of a name for a store in which nobody waits any more.
create function tourbillon_leases.leave_1(p_name text, p_store text) returns void
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_row tourbillon_leases.lease;
begin
  perform set_config('synchronous_commit', 'off', true);
  select l.* into v_row from tourbillon_leases.lease l
  where l.name = p_name and l.waiter = p_store for no key update;
  if not found then
    return;
  end if;
  if v_row.owner is not null and v_row.ends > clock_timestamp() then
    -- Callers of other stores, who have waited for less, have written nothing.
    update tourbillon_leases.lease l set waiter = null, since = null, announce = true where l.name = p_name;
  else
    -- The name is free from now on, also for those who were refused meanwhile.
    update tourbillon_leases.lease l set waiter = null, since = null, ends = least(l.ends, clock_timestamp())
    where l.name = p_name;
    perform pg_notify('tourbillon_leases', p_store || ' ' || p_name);
  end if;
end
$$;

-- Writes a ticket beside a name. The lease is in us. Tells whether the name is held with this secret.
create function tourbillon_leases.detach_1(p_name text, p_secret text, p_ticket text, p_lease bigint, p_terms text)
returns boolean
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  update tourbillon_leases.lease l
  set ticket = p_ticket, detached = p_lease * interval '1 microsecond', terms = p_terms
  where l.name = p_name and l.secret = p_secret and l.ends > clock_timestamp();
  return found;
end
$$;

-- Gives a detached name to another owner. The ticket is used up in the same step.
-- Answers: 0 it is not detached with this ticket; 1 resumed, the token, and the terms; 2 it was detached with a lease
-- of so many us, which is longer than the longest one.
create function tourbillon_leases.resume_1(
  p_name text, p_ticket text, p_owner text, p_secret text, p_data text, p_longest bigint,
  out answer smallint, out number bigint, out terms text
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_row tourbillon_leases.lease;
  v_now timestamptz;
  v_again boolean;
begin
  answer := 0;
  number := 0;
  terms := '';
  select l.* into v_row from tourbillon_leases.lease l where l.name = p_name for no key update;
  v_now := clock_timestamp();
  -- The same secret already: the call was repeated, since its answer was lost.
  v_again := coalesce(v_row.secret = p_secret, false);
  if v_row.detached is null or v_row.ends <= v_now or not (v_again or coalesce(v_row.ticket = p_ticket, false)) then
    return;
  end if;
  if v_row.detached > p_longest * interval '1 microsecond' then
    answer := 2;
    number := ceil(extract(epoch from v_row.detached) * 1000000)::bigint;
    return;
  end if;
  update tourbillon_leases.lease l set
    owner = case when v_again then l.owner else p_owner end,
    secret = p_secret,
    holds = case when v_again then l.holds else 1 end,
    data = case when v_again then l.data else nullif(p_data, '') end,
    ticket = case when v_again then l.ticket end,
    -- A call that is repeated must not shorten what a later one has extended.
    ends = greatest(l.ends, v_now + l.detached),
    length = case when l.ends < v_now + l.detached then l.detached else l.length end
  where l.name = p_name;
  answer := 1;
  number := v_row.token;
  terms := coalesce(v_row.terms, '');
end
$$;

-- Looks at the next 2,000 rows behind p_after, in the order of their names, deletes those that nobody needs for their
-- tokens any more, and returns the last name, or null if there are no more rows. Without p_after it begins. Within an hour
-- only the first call does so, and others get null.
create function tourbillon_leases.sweep_1(p_life bigint, p_after text) returns text
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_last text;
begin
  perform set_config('synchronous_commit', 'off', true);
  if p_after is null then
    update tourbillon_leases.meta m set swept = clock_timestamp()
    where m.swept is null or m.swept not between clock_timestamp() - interval '1 hour' and clock_timestamp();
    if not found then
      return null;
    end if;
  end if;
  select s.name into v_last from (
    select l.name from tourbillon_leases.lease l where l.name > coalesce(p_after, '') order by l.name limit 2000
  ) s order by s.name desc limit 1;
  delete from tourbillon_leases.lease d where d.name = any (array(
    select l.name from tourbillon_leases.lease l
    where l.name > coalesce(p_after, '') and l.name <= v_last
      and l.ends < clock_timestamp() - p_life * interval '1 microsecond'
    order by l.name for update skip locked
  ));
  return v_last;
end
$$;

-- Fences a transaction of a user's: an error unless the name is held with this token. Until the transaction ends the
-- name is granted to nobody else, also if the lease has run out. Renewals and the release go on.
--
-- It runs with the rights of its owner, so a role needs usage on the schema alone.
create function tourbillon_leases.guard(name text, token bigint) returns void
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform from tourbillon_leases.lease l
  where l.name = guard.name and l.token = guard.token and l.secret is not null and l.ends > clock_timestamp()
  for key share;
  if not found then
    raise exception using errcode = 'TB002',
      message = format('the lock %s is not held with the token %s any more', quote_literal(guard.name), guard.token),
      hint = 'Roll back, and acquire the lock anew.';
  end if;
end
$$;

insert into tourbillon_leases.meta (version, oldest_ok) values (1, 1);

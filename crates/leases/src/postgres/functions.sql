-- Functions of tourbillon-leases, version 1. Those with a number behind their names are called by the crate alone.
--
-- Whoever locks several rows does so in the order of their names, first those of `lease`, then those of `lease_share`.
-- The clock is read after the lock. What changes a row that is held locks it `for no key update`, which does not wait for
-- a transaction that has called `guard`. What grants a name locks it `for update`, and so does wait. Who joins the
-- holders of a shared name takes nothing from them, and does not wait. But what deletes the row of a holder waits, too,
-- so that nobody gets the place of a permit before the transaction has ended.

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

-- Acquires names. p_mode is that of the table. p_longest is the longest lease of the store, or 0 if it may differ from
-- that of others. p_guarded says whether a server may have lost what it has committed. Times are in us.
-- Answers: 0 held, and how long; 1 granted, and the token; 2 nothing is granted yet, and how long; 3 other stores have
-- a longer longest lease, and which; 4 granted, and there is room for others. There are places only if a permit was
-- granted.
create function tourbillon_leases.acquire_1(
  p_name text[], p_owner text[], p_secret text[], p_lease bigint[], p_waits boolean[], p_waited bigint[],
  p_data text[], p_mode int[], p_store text, p_longest bigint, p_guarded boolean,
  out answers smallint[], out numbers bigint[], out places int[]
)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
-- It waits for nobody but another one that grants a new name, or a place of a shared one, until the commit of that one
-- is on disk.
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
  -- The answer in the place of a grant.
  v_stop smallint := 0;
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
  v_joined record;
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
  if p_longest > 0 and p_longest < v_longest then
    v_stop := 3;
    v_wait := v_longest;
  elsif v_wait > 0 then
    v_stop := 2;
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
      if v_row.mode <> 0 then
        v_joined := tourbillon_leases.join_1(
          v_row, p_owner[i], p_secret[i], p_lease[i], p_waits[i], p_waited[i], p_data[i], p_mode[i], p_store, v_stop,
          cardinality(p_name) = 1
        );
        continue tries when v_joined.answer is null;
        answers[i] := v_joined.answer;
        numbers[i] := coalesce(v_joined.number, case when v_joined.answer in (2, 3) then v_wait else numbers[i] end);
        if v_joined.place > 0 then
          places := coalesce(places, array_fill(0, array[cardinality(p_name)]));
          places[i] := v_joined.place;
        end if;
        exit tries;
      end if;
      v_now := clock_timestamp();
      v_held := v_row.owner is not null and v_row.ends > v_now
        and (p_mode[i] <> 0 or v_row.secret is distinct from p_secret[i]);
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
          where l.name = p_name[i] and l.token = v_row.token and l.mode = 0 and (l.owner is not null) = v_held;
          continue tries when not found;
          if v_cuts then
            v_row.ends := v_now + v_row.length;
          end if;
        end if;
        numbers[i] := ceil(extract(epoch from v_row.ends - v_now) * 1000000)::bigint;
        exit tries;
      end if;
      if v_stop > 0 then
        answers[i] := v_stop;
        numbers[i] := v_wait;
        exit tries;
      end if;
      if v_is_new then
        v_token := (extract(epoch from v_now) * 1000000)::bigint;
        if p_mode[i] = 0 then
          insert into tourbillon_leases.lease (name, owner, secret, token, ends, length, data)
          values (p_name[i], p_owner[i], p_secret[i], v_token, v_now + p_lease[i] * v_us, p_lease[i] * v_us,
            nullif(p_data[i], ''))
          on conflict (name) do nothing;
        else
          insert into tourbillon_leases.lease (name, mode, token, ends, length)
          values (p_name[i], p_mode[i], v_token, v_now, '0')
          on conflict (name) do nothing;
        end if;
        -- Somebody else was quicker.
        continue tries when not found;
      else
        -- A transaction that has called `guard` may go on for long, and nobody else on this connection should wait for
        -- it. Other locks of a row last for a moment.
        select l.* into v_row from tourbillon_leases.lease l where l.name = p_name[i] for update skip locked;
        if not found then
          exit tries when v_tries > case p_mode[i] when 0 then 1 else 3 end or cardinality(p_name) > 1;
          if p_mode[i] = 0 then
            perform pg_sleep(0.001);
          else
            -- Another reader is quicker. This waits for its commit, and then joins it.
            exit tries when not tourbillon_leases.await_1(p_name[i]);
          end if;
          continue tries;
        end if;
        v_now := clock_timestamp();
        continue tries when v_row.mode <> 0;
        continue tries when v_row.owner is not null and v_row.ends > v_now
          and (p_mode[i] <> 0 or v_row.secret is distinct from p_secret[i]);
        continue tries when v_row.owner is null and v_row.waiter is not null and v_row.ends > v_now
          and v_row.ends <= v_now + interval '25 ms' and (p_waited[i] < v_turn or v_row.waiter <> p_store);
        v_ends := v_now + p_lease[i] * v_us;
        if v_row.owner is not null and v_row.ends > v_now then
          -- The same secret again: the call was repeated, or arrives late. It must not shorten what was extended
          -- meanwhile, nor change the token by which a transaction of the holder's is fenced.
          v_token := v_row.token;
          update tourbillon_leases.lease l set
            ends = greatest(v_row.ends, v_ends),
            length = case when v_row.ends > v_ends then greatest(v_row.length, p_lease[i] * v_us) else p_lease[i] * v_us end
          where l.name = p_name[i];
        elsif p_mode[i] <> 0 then
          v_token := greatest((extract(epoch from v_now) * 1000000)::bigint, v_row.token + 1);
          update tourbillon_leases.lease l set
            mode = p_mode[i],
            owner = null,
            secret = null,
            token = v_token,
            ends = v_now,
            data = null,
            waiter = null,
            since = null,
            announce = v_row.announce or v_row.owner is not null and v_row.waiter is not null,
            ticket = null,
            detached = null,
            terms = null
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
      if p_mode[i] <> 0 then
        insert into tourbillon_leases.lease_share (name, secret, owner, place, token, ends, length, data)
        values (p_name[i], p_secret[i], p_owner[i], 0, v_token, v_now + p_lease[i] * v_us, p_lease[i] * v_us,
          nullif(p_data[i], ''));
        if p_mode[i] <> 1 then
          answers[i] := 4;
        end if;
      end if;
      exit tries;
    end loop;
  end loop;
  -- A note of a caller that waits may be lost.
  if not (1 = any (answers) or 4 = any (answers)) then
    perform set_config('synchronous_commit', 'off', true);
  end if;
end
$$;

-- Lets a caller join the holders of a shared name, whose row acquire_1 has found. p_stop is the answer in the place of a
-- grant, if not 0. p_alone says whether the call has one name, so that it may wait for others who do the same.
-- Answers as acquire_1, or null if it is to look again. A number that is null is one that acquire_1 knows.
create function tourbillon_leases.join_1(
  p_row tourbillon_leases.lease, p_owner text, p_secret text, p_lease bigint, p_waits boolean, p_waited bigint,
  p_data text, p_mode int, p_store text, p_stop smallint, p_alone boolean,
  out answer smallint, out number bigint, out place int
)
language plpgsql volatile security invoker
as $$
declare
  v_us constant interval := '1 microsecond';
  v_recent constant interval := '1500 ms';
  v_now timestamptz := clock_timestamp();
  v_row tourbillon_leases.lease;
  v_live bigint;
  v_all bigint;
  v_first timestamptz;
  v_last timestamptz;
  v_own boolean;
  v_too_long boolean;
  -- The lowest free place.
  v_place bigint;
  v_until timestamptz;
  v_since timestamptz;
  v_notes boolean;
begin
  select count(*) filter (where s.ends > v_now), count(*), min(s.ends) filter (where s.ends > v_now), max(s.ends),
    bool_or(s.secret = p_secret and not s.released and s.ends > v_now), bool_or(s.ends > v_now + s.length),
    coalesce(min(s.n) filter (where s.place <> s.n), count(*))
  into v_live, v_all, v_first, v_last, v_own, v_too_long, v_place
  from (
    select s.secret, s.released, s.ends, s.length, s.place, row_number() over (order by s.place) - 1 as n
    from tourbillon_leases.lease_share s where s.name = p_row.name
  ) s;
  if v_too_long then
    -- The clock was set back: see acquire_1.
    update tourbillon_leases.lease_share s set ends = least(s.ends, clock_timestamp() + s.length)
    from (
      select o.secret from tourbillon_leases.lease_share o
      where o.name = p_row.name and o.ends > v_now + o.length order by o.secret for no key update skip locked
    ) o
    where s.name = p_row.name and s.secret = o.secret;
    return;
  end if;
  -- While a transaction goes on that has called `guard` for the last permit, there are still the other places. But somebody
  -- in another mode who waits comes first.
  if v_live = 0 and not (p_mode = p_row.mode and p_mode > 0 and v_all > 0
    and (p_row.asked between v_now - v_recent and v_now) is not true) then
    if p_stop > 0 then
      answer := p_stop;
      return;
    end if;
    -- All leases have run out. The name is as free as it was before the first of them.
    select l.* into v_row from tourbillon_leases.lease l where l.name = p_row.name for update skip locked;
    if not found then
      if not p_alone or p_mode = 0 or not tourbillon_leases.await_1(p_row.name) then
        answer := 0;
      end if;
      return;
    end if;
    if v_row is distinct from p_row or tourbillon_leases.clear_1(p_row.name) then
      return;
    end if;
    update tourbillon_leases.lease l set
      mode = 0,
      ends = v_now,
      waiter = null,
      since = null,
      announce = l.announce or l.waiter is not null,
      asker = null,
      asked = null,
      turn = null
    where l.name = p_row.name;
    return;
  end if;
  if v_own and p_mode = p_row.mode then
    answer := p_stop;
    if p_stop = 0 then
      -- A repeated call: see acquire_1.
      update tourbillon_leases.lease_share s set
        ends = greatest(s.ends, clock_timestamp() + p_lease * v_us),
        length = case when s.ends > clock_timestamp() + p_lease * v_us then greatest(s.length, p_lease * v_us)
          else p_lease * v_us end
      where s.name = p_row.name and s.secret = p_secret and not s.released and s.ends > clock_timestamp()
      -- The answer before, which wakes the next one, may be lost.
      returning case when p_mode < 0 or v_live < p_mode then 4 else 1 end, s.token, s.place into answer, number, place;
    end if;
    return;
  end if;
  v_until := case
    when p_mode <> p_row.mode then v_last
    -- If the clock was set back, a moment in the future does not count.
    when p_row.asked between v_now - v_recent and v_now then least(v_last, p_row.asked + v_recent)
    when p_mode > 0 and v_live >= p_mode then v_first
    when p_row.turn is not null and p_row.ends > v_now and p_row.ends <= v_now + interval '25 ms'
      and (p_waited < 20000 or p_row.turn <> p_store) then p_row.ends end;
  if v_until is not null then
    v_since := v_now - p_waited * v_us;
    v_notes := p_row.since is null or v_since + interval '5 ms' <= p_row.since;
    if p_waits and (v_notes or p_mode <> p_row.mode) then
      answer := 0;
      perform from tourbillon_leases.lease l where l.name = p_row.name for no key update skip locked;
      -- Those who join have the row locked all the time. Who waits in another mode stands in their queue, or it would
      -- never be noted, and never get in.
      if not found and not (p_alone and p_mode <> p_row.mode and tourbillon_leases.await_1(p_row.name)) then
        return;
      end if;
      update tourbillon_leases.lease l set
        waiter = case when v_notes then p_store else l.waiter end,
        since = case when v_notes then v_since else l.since end,
        -- Whoever leaves takes back what its store alone has noted.
        asker = case
          when p_mode = l.mode then l.asker
          when l.asker <> p_store and l.asked > clock_timestamp() - v_recent then '*'
          else p_store end,
        asked = case when p_mode <> l.mode then clock_timestamp() else l.asked end
      where l.name = p_row.name and l.mode = p_row.mode
        -- Whoever has gone before the lock has announced nothing.
        and case when p_mode <> l.mode
          then exists (select from tourbillon_leases.lease_share s where s.name = l.name and s.ends > v_now)
          else v_live <= (
            select count(*) from tourbillon_leases.lease_share s where s.name = l.name and s.ends > v_now
          ) end;
      if not found then
        answer := null;
        return;
      end if;
    end if;
    answer := 0;
    number := ceil(extract(epoch from v_until - v_now) * 1000000)::bigint;
    -- Who waits has to ask again before 1.5 s are over.
    if p_waits then
      number := least(number, 1000000);
    end if;
    return;
  end if;
  if p_stop > 0 then
    answer := p_stop;
    return;
  end if;
  select l.* into v_row from tourbillon_leases.lease l where l.name = p_row.name for no key update skip locked;
  if not found then
    if not p_alone or not tourbillon_leases.await_1(p_row.name) then
      answer := 0;
      return;
    end if;
    select l.* into v_row from tourbillon_leases.lease l where l.name = p_row.name;
  end if;
  -- Whoever has got a place meanwhile, or was the last one to go, has changed the row. The next look finds what is true
  -- then, since the row stays locked.
  if v_row is distinct from p_row then
    return;
  end if;
  if v_all > v_live then
    perform tourbillon_leases.clear_1(p_row.name);
    -- More leases may have run out since the look.
    select coalesce(min(s.n) filter (where s.place <> s.n), count(*)), count(*) into v_place, v_live
    from (
      select s.place, row_number() over (order by s.place) - 1 as n
      from tourbillon_leases.lease_share s where s.name = p_row.name
    ) s;
    -- The others are over, but transactions that have called `guard` go on.
    if p_mode > 0 and v_place >= p_mode then
      answer := 0;
      return;
    end if;
  end if;
  v_now := clock_timestamp();
  number := v_row.token;
  place := 0;
  if p_mode > 0 then
    place := v_place;
    number := greatest((extract(epoch from v_now) * 1000000)::bigint, v_row.token + 1);
    -- The name may be an old one, whose row sweep_1 would delete.
    update tourbillon_leases.lease l set token = number, turn = null, ends = v_now where l.name = p_row.name;
  end if;
  if p_waited > 0 and v_row.waiter = p_store then
    -- The wait that is noted for this store may be over now. Others of it note theirs when they ask again.
    update tourbillon_leases.lease l set waiter = null, since = null, announce = true where l.name = p_row.name;
  end if;
  insert into tourbillon_leases.lease_share as s (name, secret, owner, place, token, ends, length, data)
  values (p_row.name, p_secret, p_owner, join_1.place, number, v_now + p_lease * v_us, p_lease * v_us,
    nullif(p_data, ''))
  on conflict (name, secret) do nothing;
  answer := case when not found then 0 when p_mode < 0 or v_live + 1 < p_mode then 4 else 1 end;
  if answer = 0 then
    number := null;
  end if;
end
$$;

-- Waits for others who have locked the row of a name, until their commits are on disk, and locks it. Tells false if that
-- takes too long: there is a long queue, or a commit hangs. Then the name is as good as held.
create function tourbillon_leases.await_1(p_name text) returns boolean
language plpgsql volatile security invoker
as $$
begin
  perform from tourbillon_leases.lease l where l.name = p_name for no key update;
  return true;
exception when lock_not_available then
  return false;
end
$$;

-- Deletes the holders of a name whose leases have run out. Tells whether rows stay: those of other holders, and those
-- that a transaction has locked which has called `guard`.
create function tourbillon_leases.clear_1(p_name text) returns boolean
language plpgsql volatile security invoker
as $$
begin
  delete from tourbillon_leases.lease_share s
  using (
    select o.secret from tourbillon_leases.lease_share o
    where o.name = p_name and o.ends <= clock_timestamp() order by o.secret for update skip locked
  ) o
  where s.name = p_name and s.secret = o.secret;
  return exists (select from tourbillon_leases.lease_share s where s.name = p_name);
end
$$;

-- Renews leases. Tells of each whether it is held with this secret. If p_skips, it waits for no row that somebody has
-- locked, and tells null of what such a row seems to hold.
--
-- Here and below, a limit that the planner does not know makes it expect few rows. So it looks each of them up by the
-- index, also if the table was small when the plan was made.
create function tourbillon_leases.renew_1(
  p_name text[], p_secret text[], p_lease bigint[], p_holds int[], p_never_shortens boolean[], p_mode int[],
  p_skips boolean
) returns boolean[]
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_free text[];
  v_renewed boolean[];
begin
  if 0 <> all (p_mode) and cardinality(p_mode) > 0 then
    return tourbillon_leases.renew_shares_1(p_name, p_secret, p_lease, p_holds, p_never_shortens, p_skips);
  end if;
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
      -- It is the longer one if the clock was set back: what is left may be cut to it.
      length = case when a.never_shortens and l.ends > clock_timestamp() + a.lease then greatest(l.length, a.lease)
        else a.lease end,
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
  if 0 <> any (p_mode) then
    -- The others are not found by one function, or not by the other.
    return (
      select array_agg(case when m.mode = 0 then m.alone else m.shared end order by m.n)
      from unnest(p_mode, v_renewed, tourbillon_leases.renew_shares_1(
        p_name, p_secret, p_lease, p_holds, p_never_shortens, p_skips
      )) with ordinality m(mode, alone, shared, n)
    );
  end if;
  return v_renewed;
end
$$;

-- The same for holders of shared names. It leaves the rows of the names alone.
create function tourbillon_leases.renew_shares_1(
  p_name text[], p_secret text[], p_lease bigint[], p_holds int[], p_never_shortens boolean[], p_skips boolean
) returns boolean[]
language plpgsql volatile security invoker
as $$
declare
  v_names text[];
  v_secrets text[];
  v_renewed boolean[];
begin
  if p_skips then
    -- The rows that nobody has locked.
    select array_agg(f.name), array_agg(f.secret) into v_names, v_secrets
    from (
      select s.name, s.secret from unnest(p_name, p_secret) u(name, secret)
      join tourbillon_leases.lease_share s on s.name = u.name and s.secret = u.secret
      order by s.name, s.secret for no key update of s skip locked
    ) f;
  end if;
  with asked as materialized (
    select u.n, u.name, u.secret, u.lease * interval '1 microsecond' as lease, u.holds, u.never_shortens
    from unnest(p_name, p_secret, p_lease, p_holds, p_never_shortens)
      with ordinality u(name, secret, lease, holds, never_shortens, n)
    order by u.name collate "C", u.secret collate "C", u.n limit cardinality(p_name)
  ), renewed as (
    update tourbillon_leases.lease_share s set
      ends = case when a.never_shortens then greatest(s.ends, clock_timestamp() + a.lease)
        else clock_timestamp() + a.lease end,
      length = case when a.never_shortens and s.ends > clock_timestamp() + a.lease then greatest(s.length, a.lease)
        else a.lease end,
      holds = a.holds
    from asked a
    where s.name = a.name and s.secret = a.secret and not s.released and s.ends > clock_timestamp()
      and (not p_skips
        or (s.name, s.secret) in (select f.name, f.secret from unnest(v_names, v_secrets) f(name, secret)))
    returning s.name, s.secret
  )
  select array_agg(
    case
      when (a.name, a.secret) in (select d.name, d.secret from renewed d) then true
      when p_skips
        and (a.name, a.secret) not in (select f.name, f.secret from unnest(v_names, v_secrets) f(name, secret))
        and exists (select from tourbillon_leases.lease_share s where s.name = a.name and s.secret = a.secret) then null
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
  p_name text[], p_secret text[], p_rest bigint[], p_mode int[], p_store text, p_skips boolean, p_announces boolean
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
  v_item record;
begin
  -- If this is lost, a name is locked for the rest of a lease. So nobody waits for the disk.
  perform set_config('synchronous_commit', 'off', true);
  -- The usual calls, in fewer steps than the general form below.
  if cardinality(p_name) = 1 and p_mode[1] <> 0 and not p_skips then
    return array[tourbillon_leases.part_1(p_name[1], p_secret[1], p_rest[1], p_store, false, p_announces)];
  end if;
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
  if 0 <> any (p_mode) then
    for v_item in
      select u.n::int as n, u.name, u.secret, u.rest
      from unnest(p_name, p_secret, p_rest, p_mode) with ordinality u(name, secret, rest, mode, n)
      where u.mode <> 0 order by u.name collate "C", u.secret collate "C", u.n
    loop
      v_released[v_item.n] := tourbillon_leases.part_1(
        v_item.name, v_item.secret, v_item.rest, p_store, p_skips, p_announces
      );
    end loop;
  end if;
  return v_released;
end
$$;

-- Releases the place of one holder of a shared name. The arguments are those of release_1.
create function tourbillon_leases.part_1(
  p_name text, p_secret text, p_rest bigint, p_store text, p_skips boolean, p_announces boolean
) returns boolean
language plpgsql volatile security invoker
as $$
declare
  v_now timestamptz;
  v_row tourbillon_leases.lease;
  v_ends timestamptz;
  v_others boolean;
  v_stay boolean;
  v_announces boolean;
  v_is_due boolean;
  v_reserved timestamptz;
  v_is_locked boolean := false;
begin
  -- Who notes that it waits has the same lock. So either it finds the place free, or its note is found here.
  if not p_skips then
    select l.* into v_row from tourbillon_leases.lease l where l.name = p_name for no key update;
  else
    select l.* into v_row from tourbillon_leases.lease l where l.name = p_name for no key update skip locked;
    v_is_locked := not found;
    perform from tourbillon_leases.lease_share s
    where s.name = p_name and s.secret = p_secret for no key update skip locked;
    if not found then
      return case when not exists (
        select from tourbillon_leases.lease_share s where s.name = p_name and s.secret = p_secret
      ) then false end;
    end if;
  end if;
  v_announces := p_announces and (v_is_locked or v_row.waiter is not null or v_row.announce);
  if p_rest > 0 then
    update tourbillon_leases.lease_share s set
      owner = s.owner || ' (released)',
      released = true,
      ends = clock_timestamp() + p_rest * interval '1 microsecond',
      length = p_rest * interval '1 microsecond'
    where s.name = p_name and s.secret = p_secret and not s.released and s.ends > clock_timestamp();
    if found and v_announces then
      -- Who waits asks how long.
      perform pg_notify('tourbillon_leases', p_store || ' ' || p_name);
    end if;
    return found;
  end if;
  if not v_is_locked then
    delete from tourbillon_leases.lease_share s
    where s.name = p_name and s.secret = p_secret and s.ctid = (
      select o.ctid from tourbillon_leases.lease_share o
      where o.name = p_name and o.secret = p_secret and not o.released for update skip locked
    )
    returning s.ends into v_ends;
  end if;
  if v_ends is null then
    -- A transaction that has called `guard` goes on. The row stays so long, so that nobody gets its place. It also stays
    -- for those who have locked the name, and have looked at its holders before.
    select s.ends into v_ends from tourbillon_leases.lease_share s
    where s.name = p_name and s.secret = p_secret and not s.released for no key update;
    if not found then
      return false;
    end if;
    update tourbillon_leases.lease_share s set released = true, ends = least(s.ends, clock_timestamp())
    where s.name = p_name and s.secret = p_secret;
  end if;
  v_now := clock_timestamp();
  if v_is_locked then
    -- Whether somebody waits is not known. Whoever asks next does the rest.
    if v_announces then
      perform pg_notify('tourbillon_leases', p_store || ' ' || p_name);
    end if;
    return v_ends > v_now;
  end if;
  select exists (select from tourbillon_leases.lease_share s where s.name = p_name and s.ends > v_now),
    exists (select from tourbillon_leases.lease_share s where s.name = p_name)
  into v_others, v_stay;
  -- A reader that goes makes no room, since there was room before. While somebody in another mode waits, there is none.
  if v_others and (v_row.mode < 0 or v_ends <= v_now or v_row.asked between v_now - interval '1500 ms' and v_now) then
    return v_ends > v_now;
  end if;
  if v_announces then
    perform pg_notify('tourbillon_leases', p_store || ' ' || p_name);
  end if;
  v_is_due := coalesce(v_ends > v_now and v_row.waiter is not null and v_now - v_row.since >= interval '20 ms', false);
  v_reserved := v_now + least(greatest((v_now - v_row.since) / 4, interval '5 ms'), interval '25 ms');
  if not v_others then
    v_stay := v_stay and tourbillon_leases.clear_1(p_name);
    update tourbillon_leases.lease l set
      mode = case when v_stay then l.mode else 0 end,
      ends = case when v_is_due then v_reserved else v_now end,
      waiter = case when v_is_due then l.waiter end,
      since = null,
      announce = false,
      asker = null,
      asked = null,
      turn = null
    where l.name = p_name;
  elsif v_is_due then
    update tourbillon_leases.lease l set
      ends = v_reserved,
      turn = l.waiter,
      waiter = null,
      since = null,
      -- Others may wait beside this one, who have written nothing.
      announce = true
    where l.name = p_name;
  end if;
  return v_ends > v_now;
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
  where l.name = p_name and p_store in (l.waiter, l.asker, l.turn) for no key update;
  if not found then
    return;
  end if;
  if v_row.mode <> 0 then
    update tourbillon_leases.lease l set
      waiter = nullif(l.waiter, p_store),
      since = case when l.waiter <> p_store then l.since end,
      announce = true,
      asker = nullif(l.asker, p_store),
      asked = case when l.asker <> p_store then l.asked end,
      turn = nullif(l.turn, p_store)
    where l.name = p_name;
    -- Others may join now.
    perform pg_notify('tourbillon_leases', p_store || ' ' || p_name);
  elsif v_row.owner is not null and v_row.ends > clock_timestamp() then
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
  delete from tourbillon_leases.lease_share d where (d.name, d.secret) in (
    select s.name, s.secret from tourbillon_leases.lease_share s
    where s.name > coalesce(p_after, '') and s.name <= v_last
      and s.ends < clock_timestamp() - p_life * interval '1 microsecond'
    order by s.name, s.secret for update skip locked
  );
  delete from tourbillon_leases.lease d where d.name = any (array(
    select l.name from tourbillon_leases.lease l
    where l.name > coalesce(p_after, '') and l.name <= v_last
      and l.ends < clock_timestamp() - p_life * interval '1 microsecond'
      -- The first holder of a shared name and each permit have set `ends`. Readers join only while there is one.
      and not exists (select from tourbillon_leases.lease_share s where s.name = l.name)
    order by l.name for update skip locked
  ));
  return v_last;
end
$$;

-- Fences a transaction of a user's: an error unless the name is held with this token. Until the transaction ends the
-- name is granted to nobody else, also if the lease has run out. Renewals and the release go on. For a reader, the name
-- is granted to other readers alone, and for a permit its place is granted to nobody.
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
    perform from tourbillon_leases.lease l where l.name = guard.name and l.mode <> 0 for key share;
    if found then
      perform from tourbillon_leases.lease_share s
      where s.name = guard.name and s.token = guard.token and not s.released and s.ends > clock_timestamp()
      limit 1 for key share;
    end if;
  end if;
  if not found then
    raise exception using errcode = 'TB002',
      message = format('the lock %s is not held with the token %s any more', quote_literal(guard.name), guard.token),
      hint = 'Roll back, and acquire the lock anew.';
  end if;
end
$$;

insert into tourbillon_leases.meta (version, oldest_ok) values (1, 1);

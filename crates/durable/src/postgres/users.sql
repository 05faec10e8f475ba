-- What users call.

create function tourbillon.check_1(p_queue text, p_key text) returns void
language plpgsql immutable security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_queue is null or octet_length(p_queue) not between 1 and 64 then
    raise exception using errcode = 'invalid_parameter_value', message = format(
      'tourbillon: a queue has 1 to 64 bytes, not %s', coalesce(octet_length(p_queue)::text, 'null'));
  end if;
  if p_key is null or octet_length(p_key) not between 1 and 512 then
    raise exception using errcode = 'invalid_parameter_value', message = format(
      'tourbillon: a key has 1 to 512 bytes, not %s', coalesce(octet_length(p_key)::text, 'null'));
  end if;
end
$$;

create function tourbillon.check_delay_1(p_delay interval) returns void
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_delay is null or not isfinite(p_delay) then
    raise exception using errcode = 'invalid_parameter_value', message =
      'tourbillon: a delay must be finite and not null';
  end if;
  if extract(year from p_delay) <> 0 or extract(month from p_delay) <> 0 then
    raise exception using errcode = 'invalid_parameter_value', message = format(
      'tourbillon: the length of a month depends on the date, so %s is no delay', p_delay),
      hint = 'Use days, which have 24 hours here, or pass a timestamptz.';
  end if;
  if p_delay < interval '0' then
    raise exception using errcode = 'invalid_parameter_value', message = format(
      'tourbillon: the delay %s is negative', p_delay);
  end if;
  if p_delay > interval '2900000 days' then
    raise exception using errcode = 'datetime_field_overflow', message = format(
      'tourbillon: the delay %s ends after the year 9999', p_delay);
  end if;
end
$$;

create function tourbillon.check_at_1(p_at timestamptz) returns void
language plpgsql immutable security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_at is null or not isfinite(p_at) then
    raise exception using errcode = 'invalid_parameter_value', message =
      'tourbillon: a due time must be finite and not null';
  end if;
  if p_at > '9999-12-31 23:59:59.999999+00' then
    raise exception using errcode = 'datetime_field_overflow', message = format(
      'tourbillon: the due time %s lies after the year 9999', p_at);
  end if;
end
$$;

create function tourbillon.check_payload_1(p_payload jsonb) returns void
language plpgsql immutable security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  if p_payload is null then
    raise exception using errcode = 'null_value_not_allowed', message =
      'tourbillon: a payload must not be null', hint = 'For no payload, pass the JSON value ''null''.';
  end if;
  if octet_length(p_payload::text) > 65536 then
    raise exception using errcode = 'invalid_parameter_value', message = format(
      'tourbillon: a payload has at most 65536 bytes as text, not %s', octet_length(p_payload::text));
  end if;
  if jsonb_path_exists(p_payload, '$.**{127}') then
    raise exception using errcode = 'invalid_parameter_value', message =
      'tourbillon: a payload is nested at most 127 levels deep';
  end if;
end
$$;

create function tourbillon.check_meta_1(p_meta jsonb) returns void
language plpgsql immutable security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  if jsonb_typeof(p_meta) <> 'object' then
    raise exception using errcode = 'invalid_parameter_value', message = format(
      'tourbillon: a meta is a JSON object, not %s', jsonb_typeof(p_meta));
  end if;
  if octet_length(p_meta::text) > 8192 then
    raise exception using errcode = 'invalid_parameter_value', message = format(
      'tourbillon: a meta has at most 8192 bytes as text, not %s', octet_length(p_meta::text));
  end if;
  if jsonb_path_exists(p_meta, '$.**{127}') then
    raise exception using errcode = 'invalid_parameter_value', message =
      'tourbillon: a meta is nested at most 127 levels deep';
  end if;
end
$$;

create function tourbillon.rings_1() returns boolean
language sql stable security invoker
as $$ select coalesce(pg_catalog.current_setting('tourbillon.notify', true), 'off') = 'on' $$;

-- Schedules the timer of a queue and key, and replaces one that is there. A day has 24 hours.
create function tourbillon.schedule(queue text, key text, delay interval, payload jsonb, meta jsonb default null)
returns table (due timestamptz, replaced timestamptz, running boolean)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform tourbillon.check_1($1, $2), tourbillon.check_delay_1($3), tourbillon.check_payload_1($4), tourbillon.check_meta_1($5);
  return query select w.due, w.other, w.running
  from tourbillon.write_one_1($1, $2, 0::smallint, $3, null, $4, $5, tourbillon.rings_1()) w;
end
$$;

-- The same for a point in time. One that has passed is due at once.
create function tourbillon.schedule(queue text, key text, at timestamptz, payload jsonb, meta jsonb default null)
returns table (due timestamptz, replaced timestamptz, running boolean)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform tourbillon.check_1($1, $2), tourbillon.check_at_1($3), tourbillon.check_payload_1($4), tourbillon.check_meta_1($5);
  return query select w.due, w.other, w.running
  from tourbillon.write_one_1($1, $2, 0::smallint, null, $3, $4, $5, tourbillon.rings_1()) w;
end
$$;

-- Schedules the timer of a queue and key, unless one is there or runs. Then nothing is changed, and the
-- due time is that of the other one.
create function tourbillon.schedule_if_absent(queue text, key text, delay interval, payload jsonb, meta jsonb default null)
returns table (scheduled boolean, due timestamptz, running boolean)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform tourbillon.check_1($1, $2), tourbillon.check_delay_1($3), tourbillon.check_payload_1($4), tourbillon.check_meta_1($5);
  return query select w.answer = 0, w.due, w.running
  from tourbillon.write_one_1($1, $2, 1::smallint, $3, null, $4, $5, tourbillon.rings_1()) w;
end
$$;

-- The same for a point in time. One that has passed is due at once.
create function tourbillon.schedule_if_absent(queue text, key text, at timestamptz, payload jsonb, meta jsonb default null)
returns table (scheduled boolean, due timestamptz, running boolean)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform tourbillon.check_1($1, $2), tourbillon.check_at_1($3), tourbillon.check_payload_1($4), tourbillon.check_meta_1($5);
  return query select w.answer = 0, w.due, w.running
  from tourbillon.write_one_1($1, $2, 1::smallint, null, $3, $4, $5, tourbillon.rings_1()) w;
end
$$;

-- Moves a timer. The result is 'moved', 'running' or 'not found'.
create function tourbillon.reschedule(queue text, key text, delay interval)
returns table (result text, moved_from timestamptz, due timestamptz, attempt int, since timestamptz)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform tourbillon.check_1($1, $2), tourbillon.check_delay_1($3);
  return query select
    case w.answer when 2 then 'moved' when 4 then 'running' else 'not found' end,
    case w.answer when 2 then w.other end, case w.answer when 2 then w.due end,
    case w.answer when 4 then w.attempt end, case w.answer when 4 then w.other end
  from tourbillon.write_one_1($1, $2, 2::smallint, $3, null, null, null, tourbillon.rings_1()) w;
end
$$;

-- The same for a point in time. One that has passed is due at once.
create function tourbillon.reschedule(queue text, key text, at timestamptz)
returns table (result text, moved_from timestamptz, due timestamptz, attempt int, since timestamptz)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform tourbillon.check_1($1, $2), tourbillon.check_at_1($3);
  return query select
    case w.answer when 2 then 'moved' when 4 then 'running' else 'not found' end,
    case w.answer when 2 then w.other end, case w.answer when 2 then w.due end,
    case w.answer when 4 then w.attempt end, case w.answer when 4 then w.other end
  from tourbillon.write_one_1($1, $2, 2::smallint, null, $3, null, null, tourbillon.rings_1()) w;
end
$$;

-- Cancels a timer. The result is 'cancelled': it never starts; 'running': no other run follows; or
-- 'not found'.
create function tourbillon.cancel(queue text, key text)
returns table (result text, due timestamptz, attempt int, since timestamptz)
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  perform tourbillon.check_1($1, $2);
  return query select
    case w.answer when 3 then 'cancelled' when 4 then 'running' else 'not found' end,
    case w.answer when 3 then w.due end, case w.answer when 4 then w.attempt end, case w.answer when 4 then w.other end
  from tourbillon.write_one_1($1, $2, 3::smallint, null, null, null, null, false) w;
end
$$;

-- Ends a run within the transaction that has its effect. False: the run is no longer that of the
-- node, and the transaction must be rolled back. The last two are of a timer with a schedule.
create function tourbillon.complete(
  queue text, key text, generation bigint, epoch bigint, attempt int, next timestamptz default null,
  next_meta jsonb default null
)
returns boolean
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
declare
  v_answer smallint;
begin
  select s.answer into v_answer
  from tourbillon.settle_1($4, array[$1], array[$2], array[$3], array[$5], array[0::smallint],
    array[interval '0'], array[null::text], array[$6], array[$7], true) s;
  return v_answer in (0, 1);
end
$$;

-- Makes a timer due now. The result is that of `reschedule`.
create function tourbillon.run_now(queue text, key text)
returns table (result text, moved_from timestamptz, due timestamptz, attempt int, since timestamptz)
language sql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$ select * from tourbillon.reschedule($1, $2, interval '0') $$;

-- Turns a dead letter into a timer that is due now. The result is 'revived', 'exists': there is a timer with its
-- key, and nothing was changed; or 'not found'.
create function tourbillon.revive(id bigint) returns text
language sql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
  select case r.answer when 0 then 'revived' when 1 then 'exists' else 'not found' end
  from tourbillon.revive_1($1, tourbillon.rings_1()) r
$$;

-- Deletes a dead letter. False: there is none.
create function tourbillon.discard(id bigint) returns boolean
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  delete from tourbillon.dead d where d.id = $1;
  return found;
end
$$;

-- Pauses a queue: its timers are not claimed until it is resumed.
create function tourbillon.pause(queue text) returns void
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  perform tourbillon.check_1($1, 'any');
  insert into tourbillon.queue as q (name, paused) values ($1, true) on conflict (name) do update set paused = true;
end
$$;

-- Ends a pause.
create function tourbillon.resume(queue text) returns void
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  perform tourbillon.check_1($1, 'any');
  update tourbillon.queue q set paused = false where q.name = $1;
end
$$;

-- Pauses one schedule: it has no occurrence until it is resumed. A run that is under way goes on. False: there is no
-- schedule with this key.
create function tourbillon.pause(queue text, key text) returns boolean
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  perform tourbillon.check_1($1, $2);
  return tourbillon.pause_1($1, $2, true, false);
end
$$;

-- Resumes one schedule. Its policy for missed occurrences decides about those that have passed.
create function tourbillon.resume(queue text, key text) returns boolean
language plpgsql volatile security invoker
set search_path = pg_catalog, pg_temp
as $$
begin
  perform tourbillon.check_1($1, $2);
  return tourbillon.pause_1($1, $2, false, tourbillon.rings_1());
end
$$;

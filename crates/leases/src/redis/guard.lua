-- The reasons why grants have to wait, as numbers for the answer.
local WHY = {restarted = 1, empty = 2, evicted = 3}
-- For so long after a failover, in us, holders may renew on the server that was replaced (SENTINEL-3). In a
-- cluster this covers a cluster-node-timeout of about 15 s: for so long a master that is cut off serves on.
local LATER = 10000000

-- Returns the ranges of slots that this node serves, as "0-5460,7000-7000". Slots that are on their way
-- are not among them.
local function own_slots()
  local own = string.match(redis.call('CLUSTER', 'NODES'), ' myself,%S* %S+ %S+ %S+ %S+ %S+([^\n]*)') or ''
  local ranges = {}
  for word in string.gmatch(own, '%S+') do
    if string.match(word, '^%d+$') then word = word .. '-' .. word end
    if string.match(word, '^%d+%-%d+$') then ranges[#ranges + 1] = word end
  end
  return table.concat(ranges, ',')
end

-- Returns whether a slot lies in ranges.
local function has(ranges, slot)
  for first, last in string.gmatch(ranges, '(%d+)%-(%d+)') do
    if slot >= tonumber(first) and slot <= tonumber(last) then return true end
  end
  return false
end

-- Returns how much of `longest` is left, counted from the start of this server, in us.
--
-- The server reports its uptime in whole seconds of the wall clock. It started in the second that
-- is `uptime` seconds before the current one, in the worst case at the end of that second.
local function rest_of_uptime(info, longest, microseconds)
  local uptime = string.match(info, 'uptime_in_seconds:(%-?%d+)')
  return math.max(0, longest - ((uptime - 1) * 1000000 + microseconds))
end

-- Decides whether locks may be granted. Returns nil if so. Otherwise it returns the answer for the
-- caller: {2, us, why}, {3, us}, or an error. `marker` is a key, or nil if it lies in another slot.
-- `longest` is the greatest longest lease that the store knows of, in us, or 0 for a server that
-- forgets nothing. `own` is its own one, or 0 if it may differ from that of others.
--
-- `epoch` is that of the connection, or -1 without Sentinels and cluster. `slot` is that of the name in a
-- cluster, or nil.
--
-- The marker is the text "RUN END WHY LONGEST", with " EPOCH" behind it once one is known, and in a cluster
-- " NEW" and perhaps " OLD OLDEND" behind that. RUN is the id of the server's run. END is the time until
-- which nothing is granted, or 0 when that time has passed. WHY is the reason. A marker of this run with END 0 says that this server has lost nothing since that time;
-- it needs no clock. LONGEST is the greatest longest lease of all stores that have asked for a lock, in
-- us. A store with a smaller one would wait for too short a time after a loss, when nothing tells it of
-- the others. So it is granted nothing: {3, LONGEST}. A store with a greater one `raises` LONGEST. The
-- last loss was waited out for the smaller one, so it waits for the difference, if it waits for losses
-- at all.
--
-- EPOCH is the number of the last failover. A greater one says that there was another failover since,
-- which may have lost what was not replicated yet. So does another run of a server that Sentinels watch:
-- the uptime of a replica that was promoted excuses nothing, and Sentinels that were set up anew count
-- from 0 again. A smaller number says that the connection is from before the last failover, so that
-- its server may not be the master.
--
-- In a cluster a slot may also come from a node that has lost its data. EPOCH does not show that: a node
-- that has the greatest one already keeps it. So NEW has the slots that the node served when the wait
-- until END began, and OLD those of an earlier wait, which ends at OLDEND. A name waits for the end of OLD
-- if its slot is there, else for that of NEW. If it is in neither, its slot has come since. Then what is NEW
-- becomes OLD, and all slots that the node serves by now are NEW, with a wait of their own. If NEW still
-- waits and OLD is taken, that begins when NEW has waited. So a slot that comes waits for two terms at most, and
-- prolongs the wait of no other one. Slots that went are forgotten. One that comes back raises EPOCH, since each move gives its target the greatest one if it has
-- a smaller one: first the other node, then this one. (Slots that are given by hand, with ADDSLOTS and without
-- BUMPEPOCH, do not. And a store whose map is up to 6 s old tells of the EPOCH before: so much time should
-- be between going and coming back.) Whatever else is waited for concerns all slots, and OLD is empty.
local function guard(marker, longest, starts_empty, time, own, raises, epoch, slot)
  if longest == 0 then return nil end
  local info = redis.pcall('INFO', 'server')
  if type(info) ~= 'string' then
    if string.find(info.err or '', 'nknown') then
      return {err = 'ERR this server has no command INFO, which tells when it started: it may be renamed or ' ..
        'disabled (rename-command). Allow it, or build the store as durable if the server loses nothing'}
    end
    return {err = 'NOPERM this user may not call INFO, which tells when the server started: allow ' ..
      'it (ACL SETUSER name +info), or build the store as durable if the server loses nothing'}
  end
  if not marker then
    local rest = rest_of_uptime(info, longest, tonumber(time[2]))
    if rest == 0 then return nil end
    -- More than `longest` is left if the clock is behind the server's start.
    return {2, math.min(rest, longest + 1000000), WHY.restarted}
  end
  local now = time[1] * 1000000 + time[2]
  -- If a server does not report its run, its uptime is checked each time.
  local run = string.match(info, 'run_id:(%x+)')
  local found = redis.call('GET', marker)
  local of, ends, why, known, last, new, old, old_ends = string.match(found or '',
    '^(%x+) (%d+) (%a+) (%d+) ?(%d*) ?([%d,-]*) ?([%d,-]*) ?(%d*)$')
  known, last = tonumber(known) or 0, tonumber(last) or -1
  local watched = epoch >= 0
  if watched and epoch < last then
    return {err = string.format('READONLY the connection is of epoch %.0f, and epoch %.0f has begun: another ' ..
      'server may be the master. If the servers were set up anew, delete the key %s', epoch, last, marker)}
  end
  epoch = math.max(epoch, last)
  local later = epoch >= 0 and LATER or 0
  local raised = longest > known
  longest = math.max(longest, known)
  if own > 0 and own < longest then return {3, longest} end
  local rest
  local is_old = slot and has(old or '', slot)
  if not WHY[why] then
    -- There is no valid marker: data were lost at an unknown time, perhaps just now.
    rest, why = longest + later, 'empty'
    new, old, is_old = slot and own_slots() or '', '', false
    if starts_empty then
      rest = 0
    elseif string.match(redis.call('INFO', 'stats'), 'evicted_keys:[1-9]') then
      why = 'evicted'
    end
  else
    if not raises then raised, longest = false, known end
    local came = slot and not is_old and not has(new, slot)
    local its_end = is_old and old_ends or ends
    if of == run and its_end == '0' and not came and not raised and epoch == last then return nil end
    if raised and not starts_empty then
      its_end, old, is_old = (ends == '0' and now or ends) + longest - known, '', false
    end
    -- No wait has to be longer than that. More is left if the clock was set back.
    rest = math.max(0, math.min(its_end - now, longest + later))
    if watched and (of ~= (run or '0') or last >= 0 and epoch > last) then
      rest, why = longest + later, 'restarted'
      new, old, is_old = slot and own_slots() or '', '', false
    elseif came then
      -- Two waits go on. This one begins when that of NEW is over.
      if rest > 0 and old ~= '' then return {2, rest + longest + later, WHY.restarted} end
      old, old_ends = new, rest > 0 and its_end or 0
      new = own_slots()
      if not has(new, slot) then return {err = 'TRYAGAIN the slot of the name is on its way to this node'} end
      rest, why = longest + later, 'restarted'
    elseif of ~= run then
      local since_start = math.min(rest_of_uptime(info, longest, tonumber(time[2])), longest)
      if since_start >= rest then rest, why = since_start, 'restarted' end
    end
  end
  -- Write only a change, since each write goes to the replicas and the append-only file.
  local its_end = rest > 0 and now + rest or 0
  if is_old then old_ends = its_end else ends = its_end end
  if not is_old and rest == 0 then old = '' end
  local written = string.format('%s %.0f %s %.0f', run or '0', ends, why, longest)
  if epoch >= 0 then written = string.format('%s %.0f', written, epoch) end
  -- A caller that knows no slots, such as one behind a proxy, keeps what is there.
  if slot or new ~= '' then written = written .. ' ' .. new end
  if new ~= '' and old ~= '' then written = string.format('%s %s %.0f', written, old, old_ends) end
  if written ~= found then redis.call('SET', marker, written) end
  if rest == 0 then return nil end
  return {2, rest, WHY[why]}
end

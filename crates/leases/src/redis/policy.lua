-- Tells how the server makes room when its memory is full.
-- KEYS: a marker, which leads the call to its node, or none at a node of a cluster. Answers the policy, or ''
-- if it deletes no keys, or does not tell.
local info = redis.pcall('INFO', 'memory')
if type(info) ~= 'string' or not string.match(info, 'maxmemory:[1-9]') then return '' end
local policy = string.match(info, 'maxmemory_policy:([%a-]+)') or ''
return policy ~= 'noeviction' and policy or ''

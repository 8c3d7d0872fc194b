"""``leasekit mapper check``: whether a mapper does what every mapper must.

Worlds of production actors are drawn by a seed (:mod:`.cases`) and played (:mod:`.stage`) with the mapper under test in
one of them, watched (:mod:`.watched`). All of it happens in child processes (:mod:`.child`), since what is tested may
loop, crash or exit; :mod:`.kit` starts them, and says what they found.
"""

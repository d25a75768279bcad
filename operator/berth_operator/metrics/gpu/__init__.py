"""Live GPU metrics, read in the background from Prometheus or from the agents. Decisions never wait for them.

families     the names and units of DCGM exporter, of ObserverWard and of Berth's agents
exposition   reads what an agent exposes
answers      reads what Prometheus answers
fetching     HTTP with bounds: no redirects, a deadline, a size limit
services     finds Prometheus by its Services, in namespaces that a setting lists
sources      reads all cards once: from Prometheus, or from each agent
refreshing   reads repeatedly, and reports when metrics become stale
"""
